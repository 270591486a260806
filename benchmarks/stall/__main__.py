"""Measure the stall of join, drain and loss, part by part, and what a cold restart costs beside it.

Runs the demo's scenario several times without a screen and writes the median and the maximum to
`docs/results/`, with the command, the date and the machine.  `python -m benchmarks.stall
[--repeats N]`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT, header
from benchmarks.stall.parts import table

MEASURES = ("worker", "migration", "heddle_operator")
STEPS = 80
GOALS_S = {"join": 0.3, "drain": 0.3, "loss, from the kill": 0.6}


def run_demo() -> dict[str, Any]:
    """One run of the demo; its last line is the result."""
    heddle = str(Path(sys.executable).parent / "heddle")
    here = Path(__file__).parent
    command = [heddle, "demo", "--headless", "--output", "json", "--steps", str(STEPS)]
    command += ["--nodes", str(here / "nodes.yaml")]
    command += ["--script", str(here / "script.yaml")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        raise SystemExit(f"the demo ended with {done.returncode}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def report(runs: list[dict[str, Any]]) -> str:
    """The result file."""
    restarts = [run["epochs"][1]["reconfiguration"]["restart_s"] for run in runs]
    differences = [run["max_loss_difference"] for run in runs]
    stalls = defaultdict(list)
    speed = []
    for run in runs:
        for epoch in run["epochs"]:
            speed.append(epoch["step_s"] / epoch["predicted_step_s"] - 1)
            if change := epoch["reconfiguration"]:
                killed_s = change["from_kill_s"]
                what = epoch["reason"] if killed_s is None else f"{epoch['reason']}, from the kill"
                stalls[what].append(change["stall_s"] if killed_s is None else killed_s)
    goals = [
        f"- {reason}: median {statistics.median(found):.3f} s, maximum {max(found):.3f} s; "
        f"goal {GOALS_S[reason]} s in the median"
        for reason, found in stalls.items()
    ]
    steps = len(runs[0]["losses"])
    rows, against = "\n".join(table(runs)), "\n".join(goals)
    return f"""# Stall of a reconfiguration, emulated devices

{header(f"python -m benchmarks.stall --repeats {len(runs)}", MEASURES, ",")}
shared with other work (load average {os.getloadavg()[2]:.0f}). Processes, gloo groups and state
are real; the GPU types are emulated.

From the end of the last old step to the start of the first new one, in milliseconds, median /
maximum over all runs. Of a loss `detect` begins at the end of the survivors' last step; the time
from the kill stands below:

{rows}

Against the goals:

{against}

A cold restart of the same job (from pods to first step, reading no checkpoint): median
{statistics.median(restarts):.1f} s, maximum {max(restarts):.1f} s.

Largest loss difference to one plain process over {steps} steps: {max(differences):.1e}.
Step time against the simulated one, over all epochs: {100 * min(speed):+.1f} % to
{100 * max(speed):+.1f} %.
"""


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description="Measure the stall of join, drain and loss.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "results" / "stall_emulated.md"
    )
    arguments = parser.parse_args()
    runs = []
    for index in range(arguments.repeats):
        print(f"run {index + 1} of {arguments.repeats}", file=sys.stderr, flush=True)
        runs.append(run_demo())
    text = report(runs)
    arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
