"""Goodput of a job that loses everything again and again, beside the same command started again.

    python -m benchmarks.checkpoints.goodput [--turns N] [--quick]

Three ways by turns: nothing is lost; all nodes are killed at some steps and others join at once;
the whole run is killed at these steps, and a script starts the same command again at once.  Writes
a section of docs/results/checkpoints.md and a picture.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import yaml

from benchmarks.checkpoints.page import put_section
from benchmarks.pages import PAGES, ROOT, header
from worker.checkpoint.attempts import MANIFEST
from worker.data.making.prepare import prepare

TITLE = "## A job that loses everything"
HEDDLE = str(Path(sys.executable).parent / "heddle")
SPEED = 1.0  # of the emulated nodes
TURNS = 2
WAYS = ("nothing is lost", "Heddle goes on", "started again")
LIMIT_S, LOOK_S = 900.0, 0.02


class Sizes(NamedTuple):
    """Steps of the job, those at which all is lost, and steps between two saves."""

    steps: int
    kills: tuple[int, ...]
    every: int


USUAL = Sizes(240, (70, 150), 20)  # half an interval is lost at each kill
QUICK = Sizes(24, (6, 14), 4)


class Run(NamedTuple):
    """One way of one turn.

    Attributes:
        wall_s: from the first command to the end of the job.
        step_s: seconds of a step, the median of the last epoch.
        starts: first step of each start that is known; the last command's in the third way.
    """

    wall_s: float
    step_s: float
    starts: tuple[int, ...]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short job; writes nothing")
    parser.add_argument("--turns", type=int, default=TURNS, help="18 minutes each (%(default)s)")
    options = parser.parse_args()
    sizes = QUICK if options.quick else USUAL
    found = measure(sizes, 1 if options.quick else options.turns)
    text = report(sizes, found)
    print(text)
    if not options.quick:
        put_section(text)
        picture(sizes, found, PAGES / "checkpoints_goodput.svg")


def measure(sizes: Sizes, turns: int) -> dict[str, list[Run]]:
    """Every way of every turn."""
    found: dict[str, list[Run]] = {way: [] for way in WAYS}
    build = ROOT / "build"  # on a disk, which /tmp need not be
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        data = Path(folder) / "text"
        prepare([Path(sysconfig.get_paths()["stdlib"])], data, 1_000_000)
        for turn in range(turns):
            first, *others = WAYS
            for way in (first, *(others if turn % 2 else reversed(others))):
                at = Path(folder) / f"{turn}-{WAYS.index(way)}"
                _make(at, str(data), sizes)
                if way == "started again":
                    run = _again(at, sizes, found[first][-1].step_s)
                else:
                    run = _once(at, loses=way != first)
                print(way, run, file=sys.stderr, flush=True)
                found[way].append(run)
    return found


def _make(folder: Path, data: str, sizes: Sizes) -> None:
    """The files of a run; nothing of another one is in its folder."""
    folder.mkdir()
    body = yaml.safe_load((ROOT / "manifests" / "examples" / "tiny.yaml").read_text())
    training = {"globalBatch": 32, "sequenceLength": 128, "learningRate": 3e-4, "warmupSteps": 0}
    body["spec"] |= {"steps": sizes.steps, "data": {"path": data}, "training": training}
    body["spec"]["elastic"] = {"joinDebounceSeconds": 0, "cooldownSeconds": 0}
    body["spec"]["checkpoint"] = {"path": str(folder / "saves"), "interval": {"steps": sizes.every}}
    (folder / "job.yaml").write_text(yaml.safe_dump(body))
    (folder / "nodes.yaml").write_text(yaml.safe_dump(_nodes("0")))
    events: list[dict[str, Any]] = []
    for index, step in enumerate(sizes.kills):
        events += [{"at_step": step, "kill": node["name"]} for node in _nodes(str(index))]
        events += [{"at_step": step, "join": node} for node in _nodes(str(index + 1))]
    (folder / "script.yaml").write_text(yaml.safe_dump(events))


def _nodes(generation: str) -> list[dict[str, Any]]:
    return [
        {"name": f"{name}{generation}", "type": "demo-fast", "gpus": 1, "speed_factor": SPEED}
        for name in ("a", "b")
    ]


def _started(folder: Path, *more: str) -> subprocess.Popen[str]:
    named = ["--nodes", str(folder / "nodes.yaml"), "--output-path", str(folder / "out")]
    return subprocess.Popen(
        [HEDDLE, "train", str(folder / "job.yaml"), "--output", "json", *named, *more],
        stdout=subprocess.PIPE,
        stderr=(folder / "log").open("a"),
        text=True,
        start_new_session=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder.parent / "cache")},
    )


def _once(folder: Path, *, loses: bool) -> Run:
    began_s = time.monotonic()
    script = ["--script", str(folder / "script.yaml")] if loses else []
    return _run(_started(folder, *script), folder, began_s)


def _again(folder: Path, sizes: Sizes, step_s: float) -> Run:
    """Kill the whole run at about these steps, and start it again, until it ends."""
    began_s = time.monotonic()
    for step in sizes.kills:
        process = _started(folder)
        since = step % sizes.every
        _await_save(process, folder, step - since)
        time.sleep(since * step_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return _run(_started(folder), folder, began_s)


def _await_save(process: subprocess.Popen[str], folder: Path, step: int) -> None:
    """Wait until a checkpoint of the step is whole."""
    until_s = time.monotonic() + LIMIT_S
    while not list((folder / "saves").rglob(f"step-{step}.e*/{MANIFEST}")):
        if process.poll() is not None or time.monotonic() >= until_s:
            raise SystemExit((folder / "log").read_text())
        time.sleep(LOOK_S)


def _run(process: subprocess.Popen[str], folder: Path, began_s: float) -> Run:
    """Wait for the end of a job."""
    out, _ = process.communicate(timeout=LIMIT_S)
    wall_s = time.monotonic() - began_s
    if process.returncode:
        raise SystemExit((folder / "log").read_text())
    epochs = json.loads(out)["epochs"]
    return Run(wall_s, epochs[-1]["step_s"], tuple(epoch["first_step"] for epoch in epochs))


def goodput(sizes: Sizes, found: dict[str, list[Run]], way: str) -> list[float]:
    """Of each turn: the job's steps, as long as they take where nothing is lost, over the time."""
    alone = found["nothing is lost"]
    return [sizes.steps * a.step_s / run.wall_s for a, run in zip(alone, found[way], strict=True)]


def cost_s(sizes: Sizes, found: dict[str, list[Run]], way: str) -> list[float]:
    """Of each turn: seconds that a loss costs, steps that are trained again included."""
    alone = found["nothing is lost"]
    pairs = zip(alone, found[way], strict=True)
    return [(run.wall_s - a.wall_s) / len(sizes.kills) for a, run in pairs]


def report(sizes: Sizes, found: dict[str, list[Run]]) -> str:
    """The section."""
    alone = found["nothing is lost"]
    step_s = statistics.median(run.step_s for run in alone)
    between = (sizes.kills[-1] - sizes.kills[0]) / (len(sizes.kills) - 1)
    lines = [
        TITLE,
        "",
        header(
            "python -m benchmarks.checkpoints.goodput",
            ["worker/checkpoint", "heddle_operator", "heddle/train"],
            ", shared with others.",
        ),
        "",
        f"A small job of {sizes.steps} steps on two emulated GPUs takes {step_s:.2f} s a step, and"
        f" saves each {sizes.every} steps.",
        f"It loses all nodes {len(sizes.kills)} times, {between:.0f} steps or"
        f" {between * step_s:.0f} s apart, half an interval after a save.",
        "Goodput is the seconds of the job's steps where nothing is lost, over those from the",
        f"first command to the end of the job. {len(alone)} turns; a cell has the median, and the"
        " least to the most.",
        "",
        "| way | seconds | goodput | seconds that a loss costs | its steps again, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way, runs in found.items():
        again_s = [
            step_s * statistics.mean(step % sizes.every for step in sizes.kills) for _ in runs
        ]
        costs = way != "nothing is lost"
        lines.append(
            f"| {way} | {_cell([run.wall_s for run in runs], '{:.0f}')} | "
            f"{_cell(goodput(sizes, found, way), '{:.1%}')} | "
            f"{_cell(cost_s(sizes, found, way), '{:.1f}') if costs else '-'} | "
            f"{_cell(again_s, '{:.1f}') if costs else '-'} |"
        )
    pairs = zip(found["Heddle goes on"], found["started again"], strict=True)
    ratio = statistics.median(a.wall_s / b.wall_s for a, b in pairs)
    lines += [
        "",
        "![goodput of each way](checkpoints_goodput.svg)",
        "",
        "- `Heddle goes on`: one command. All nodes are killed, and as many join at once.",
        "- `started again`: the whole run is killed, and a script starts the same command at once.",
        "  It goes on from the last checkpoint too. A person would come later; none is measured.",
        f"- The time of the first over that of the second, of a turn: {ratio:.2f} (median).",
        "- A start of the command and its end are in all three, and count.",
    ]
    return "\n".join(lines) + "\n"


def _cell(each: list[float], text: str) -> str:
    middle, least, most = (text.format(of(each)) for of in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def picture(sizes: Sizes, found: dict[str, list[Run]], path: Path) -> None:
    """Goodput of each way: the median, and a dot for each turn."""
    figure, axes = plt.subplots(figsize=(7, 2.2))
    for place, way in enumerate(reversed(WAYS)):
        each = [100 * one for one in goodput(sizes, found, way)]
        axes.barh(place, statistics.median(each), alpha=0.6)
        axes.plot(each, [place] * len(each), ".", color="black", markersize=4)
    axes.set_yticks(range(len(WAYS)), reversed(WAYS))
    axes.set_xlim(0, 100)
    axes.set_xlabel("goodput in percent")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
