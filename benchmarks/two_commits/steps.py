"""Time of a step at two commits: the cost of the changes between them.

    python -m benchmarks.two_commits.steps [--before COMMIT] [--after COMMIT] [--pairs N]

Ranks of both commits train the same in turns, a few steps each, so that other work on the machine
meets both.  By default they are those before and after the device seam and the two planes came.
Writes docs/results/step_time.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from torch.distributed import TCPStore

from benchmarks.overhead.__main__ import CLOSE, PAIRS, PLANS, SIZES
from benchmarks.pages import PAGES, header
from benchmarks.two_commits.checkout import checked_out
from worker.data.making.prepare import prepare

BEFORE_SEAM, AFTER_SEAM = "e23f509c", "a995cc6e"
CASES = (("one rank", "small"), ("2 stages", "small"))  # which show what a step costs at least
LIMIT_S = 3600.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
# Both commits have these names; what they import is of the folder that they run in.
RANK = """
import json, os, sys
said = os.dup(1)
os.dup2(2, 1)
from torch.distributed import TCPStore
from benchmarks.overhead.__main__ import NEVER, PLANS, SIZES
from benchmarks.overhead.rank import _heddle, _in_turn
from planner.plans.ranks import RankMap
from worker.contract import TrainingSpec
asked = json.loads(sys.argv[1])
_, plan = PLANS[asked["plan"]]
model, length, _ = SIZES[asked["size"]]
spec = TrainingSpec(
    model=model.name, shape=model.to_json(), data=asked["data"], sequence_length=length,
    global_batch=sum(one.samples for one in plan.templates), steps=100_000, learning_rate=3e-4,
    warmup_steps=0, gradient_clip=NEVER,
)
own = TCPStore("127.0.0.1", asked["ports"][asked["side"]], is_master=False, wait_for_workers=False)
turns = TCPStore("127.0.0.1", asked["ports"][2], is_master=False, wait_for_workers=False)
step = _heddle(own, spec, plan, RankMap.of(plan).seats[asked["rank"]])
told = _in_turn(
    turns, asked["side"], asked["rank"], plan.gpus, step, asked["pairs"], asked["steps"]
)
os.write(said, json.dumps(told).encode())
"""


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=BEFORE_SEAM)
    parser.add_argument("--after", default=AFTER_SEAM)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        checked_out(options.before) as before,
        checked_out(options.after) as after,
    ):
        data = Path(folder) / "text"
        prepare([Path(sysconfig.get_paths()["stdlib"])], data, 1_000_000)
        for plan, size in CASES:
            then, now = measured(plan, size, str(data), (before, after), options.pairs)
            ratios = [b / a for a, b in zip(then, now, strict=True)]
            rows.append(
                f"| {plan} | {size} | {statistics.median(then):.3f} | "
                f"{statistics.median(now):.3f} | {statistics.median(ratios):.3f} | "
                f"{min(ratios):.2f} to {max(ratios):.2f} |"
            )
            print(rows[-1], flush=True)
    (PAGES / "step_time.md").write_text(page(rows, options))


def measured(
    name: str, size: str, data: str, trees: tuple[Path, Path], pairs: int
) -> tuple[list[float], list[float]]:
    """Seconds of the processor a step, summed over ranks, of each turn, at both commits."""
    _, plan = PLANS[name]
    stores = [
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for _ in ("before", "after", "turns")
    ]
    asked = {
        "plan": name,
        "size": size,
        "data": data,
        "ports": [store.port for store in stores],
        "pairs": pairs,
        "steps": SIZES[size].steps,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps({**asked, "side": side, "rank": rank})],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), **ENVIRONMENT},
            stdout=subprocess.PIPE,
        )
        for side, tree in enumerate(trees)
        for rank in range(plan.gpus)
    ]
    told = [json.loads(rank.communicate(timeout=LIMIT_S)[0]) for rank in ranks]
    then, now = told[: plan.gpus], told[plan.gpus :]
    for old, new in zip(then, now, strict=True):
        furthest = max(abs(a - b) for a, b in zip(old["losses"], new["losses"], strict=True))
        assert furthest <= CLOSE, f"the losses of both commits differ by {furthest:g}"
    sums = [
        [sum(turn) for turn in zip(*(rank["seconds"] for rank in of), strict=True)]
        for of in (then, now)
    ]
    return sums[0], sums[1]


def page(rows: list[str], options: argparse.Namespace) -> str:
    """The page of results."""
    command = (
        f"python -m benchmarks.two_commits.steps --before {options.before} "
        f"--after {options.after} --pairs {options.pairs}"
    )
    lines = [
        "# Time of a step at two commits",
        "",
        header(command, ["worker"], ", shared with other work."),
        "",
        f"Before is {options.before}, after is {options.after}. Seconds are of the processor for a",
        f"step, summed over ranks: medians of {options.pairs} turns of each commit in one run. The",
        "ratio is that of a pair of turns. Losses of both agree to 1e-4.",
        "",
        "| plan | model | before | after | ratio (median) | least to most |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
