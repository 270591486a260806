"""How much a save disturbs the training beside it, at the usual pace and without one.

    python -m benchmarks.checkpoints.disturbance [--turns N] [--quick]

Two ranks of this machine with DeepSpeed's engine; steps with and without a save take turns in one
run.  Writes a section of docs/results/checkpoints.md and a picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import pytest

from benchmarks.checkpoints.disturbance_rank import MODES, Row
from benchmarks.checkpoints.page import put_section
from benchmarks.checkpoints.rank import model_of, plan_of
from benchmarks.pages import PAGES, ROOT, header
from tests.unit.worker.ranks import run_ranks
from worker.contract import TrainingSpec
from worker.data.making.prepare import prepare

TITLE = "## A save beside training"
BLOCKS, TURNS, QUIET = 13, 4, 12
QUICK_BLOCKS, QUICK_TURNS, QUICK_QUIET = 1, 1, 2
TOKENS, SAMPLES = 64, 2
LIMIT_S = 1500.0
MOST_CPU, MOST_STEP, MOST_SAVE_S = 0.05, 0.10, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a save of one turn did to the steps beside it, over the quiet ones of that turn.

    Attributes:
        cpu: share by which a step took more seconds of the processor, summed over ranks.
        longest: share by which the longest step was longer.
        middle: share by which the median step was longer.
        seconds: of the save, until it was whole.
        copy_s: that updates waited for copies, of the slower rank.
        copied_bytes: that a rank has copied ahead of its writing, the most.
        memory_bytes: more than the peak of a quiet step, of the worse rank.
        steps: beside the save.
    """

    cpu: float
    longest: float
    middle: float
    seconds: float
    copy_s: float
    copied_bytes: int
    memory_bytes: int
    steps: int


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--quick", action="store_true", help="a small state; writes nothing")
    options = parser.parse_args()
    quick = options.quick
    found = measure(
        QUICK_BLOCKS if quick else BLOCKS,
        QUICK_TURNS if quick else options.turns,
        QUICK_QUIET if quick else QUIET,
    )
    text = report(found)
    print(text)
    if not quick:
        put_section(text)
        picture(found, PAGES / "checkpoints_disturbance.svg")


def measure(blocks: int, turns: int, quiet: int) -> list[dict[str, Any]]:
    """Of each rank its steps and its saves."""
    build = ROOT / "build"  # on a disk, which /tmp need not be
    build.mkdir(exist_ok=True)
    model = model_of(blocks)
    with tempfile.TemporaryDirectory(dir=build) as folder, pytest.MonkeyPatch.context() as patch:
        data = Path(folder) / "text"
        prepare([Path(sysconfig.get_paths()["stdlib"])], data, 1_000_000)
        spec = TrainingSpec(
            model=model.name,
            shape=model.to_json(),
            data=str(data),
            global_batch=SAMPLES,
            sequence_length=TOKENS,
            steps=100_000,
            learning_rate=3e-4,
            warmup_steps=0,
        )
        wanted = {"plan": plan_of(blocks, SAMPLES).to_json(), "spec": spec.model_dump(mode="json"),
                  "folder": f"{folder}/saves", "turns": turns, "quiet": quiet}  # fmt: skip
        patch.setenv("WANTED", json.dumps(wanted))
        found = run_ranks("benchmarks.checkpoints.disturbance_rank:claims", 2, LIMIT_S)
    return [{**one, "rows": [Row(*row) for row in one["rows"]]} for one in found]


def turns_of(found: list[dict[str, Any]], mode: str) -> list[Turn]:
    """The turns of a mode, in order."""
    count = 1 + max(row.turn for row in found[0]["rows"])
    saves = [[save for save in one["saves"] if save["mode"] == mode] for one in found]
    return [_turn(found, turn, mode, [mine[turn] for mine in saves]) for turn in range(count)]


def _turn(found: list[dict[str, Any]], turn: int, mode: str, saves: list[dict[str, Any]]) -> Turn:
    def of(mode: str) -> list[list[Row]]:
        return [[r for r in one["rows"] if (r.turn, r.mode) == (turn, mode)] for one in found]

    def share(figure: Callable[[list[list[Row]]], float]) -> float:
        return figure(of(mode)) / figure(of("quiet")) - 1

    def cpu(ranks: list[list[Row]]) -> float:
        return sum(statistics.mean(row.cpu_s for row in rows) for rows in ranks)

    return Turn(
        cpu=share(cpu),
        longest=share(lambda ranks: max(row.wall_s for rows in ranks for row in rows)),
        middle=share(lambda ranks: statistics.median(r.wall_s for rows in ranks for r in rows)),
        seconds=max(save["seconds"] for save in saves),
        copy_s=max(save["copy_s"] for save in saves),
        copied_bytes=max(save["copied_bytes"] for save in saves),
        memory_bytes=max(
            max(row.peak_bytes for row in beside) - max(row.peak_bytes for row in alone)
            for beside, alone in zip(of(mode), of("quiet"), strict=True)
        ),
        steps=len(of(mode)[0]),
    )


def report(found: list[dict[str, Any]]) -> str:
    """The section."""
    num_bytes = max(save["num_bytes"] for one in found for save in one["saves"])
    quiet = [row for one in found for row in one["rows"] if row.mode == "quiet"]
    step_s = statistics.median(row.wall_s for row in quiet)
    each = {mode: turns_of(found, mode) for mode in MODES}
    turns = len(each["paced"])
    command = "python -m benchmarks.checkpoints.disturbance"
    command += f" --turns {turns}" if turns != TURNS else ""
    lines = [
        TITLE,
        "",
        header(command, ["worker/checkpoint", "worker/engine"], ", shared with others."),
        "",
        f"Two ranks train with DeepSpeed's engine (TP 2, one thread each), and each saves"
        f" {num_bytes / 1e9:.2f} GB.",
        f"A quiet step takes {step_s:.2f} s. Each of {turns} turns has a paced save and one without"
        " a pause,",
        "with quiet steps before, between and behind them. A share is over the quiet steps of the",
        "same turn. A cell has the median of the turns, and the least to the most.",
        "",
        "| figure | paced | goal | unpaced |",
        "| --- | --- | --- | --- |",
    ]
    for name, goal, text, of in FIGURES:
        paced = [of(turn) for turn in each["paced"]]
        met = "-" if goal is None else f"{text.format(goal)}: {_met(paced, goal)}"
        unpaced = [of(turn) for turn in each["unpaced"]]
        lines.append(f"| {name} | {_cell(paced, text)} | {met} | {_cell(unpaced, text)} |")
    lines += [
        "",
        "![seconds of each step](checkpoints_disturbance.svg)",
        "",
        "- Seconds of the processor are those of both processes, from a boundary to the next. The",
        "  copy, the digests and the writing count, with the system's own time.",
        "- A step's seconds are those from a boundary to the next, with all that a save takes.",
        "- Memory is the most that a process holds, above that in quiet steps. A paced save first",
        f"  copies the rank's {num_bytes / 1e9:.2f} GB beside the training. It frees each chunk"
        " after its write.",
        "  An unpaced save copies the chunks that the first update meets unwritten.",
        "- The two cores have the two ranks, so writing takes its time from the steps.",
    ]
    return "\n".join(lines) + "\n"


FIGURES: tuple[tuple[str, float | None, str, Callable[[Turn], float]], ...] = (
    ("seconds of the processor of a step", MOST_CPU, "{:+.1%}", lambda turn: turn.cpu),
    ("longest step", MOST_STEP, "{:+.1%}", lambda turn: turn.longest),
    ("median step", None, "{:+.1%}", lambda turn: turn.middle),
    ("seconds of a save", MOST_SAVE_S, "{:.1f}", lambda turn: turn.seconds),
    ("updates wait for copies, s", None, "{:.2f}", lambda turn: turn.copy_s),
    ("copied ahead, GB", None, "{:.2f}", lambda turn: turn.copied_bytes / 1e9),
    ("memory, GB", None, "{:.2f}", lambda turn: turn.memory_bytes / 1e9),
    ("steps beside it", None, "{:.0f}", lambda turn: turn.steps),
)


def _cell(each: list[float], text: str) -> str:
    middle, least, most = (text.format(of(each)) for of in (statistics.median, min, max))
    return f"{middle} ({least} to {most})"


def _met(each: list[float], most: float) -> str:
    return "met" if statistics.median(each) <= most else "missed"


def picture(found: list[dict[str, Any]], path: Path) -> None:
    """Seconds of each step of rank 0, in order, by what is beside it."""
    figure, axes = plt.subplots(figsize=(7, 3.2))
    rows = found[0]["rows"]
    for mode, colour in zip(("quiet", *MODES), ("C7", "C0", "C1"), strict=True):
        points = [(i, row.wall_s) for i, row in enumerate(rows) if row.mode == mode]
        axes.plot(*zip(*points, strict=True), ".", color=colour, label=mode, markersize=4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("seconds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
