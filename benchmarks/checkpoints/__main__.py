"""Saves and loads of a checkpoint beside torch's distributed checkpoint, on the same disk.

    python -m benchmarks.checkpoints [--quick]

Two ranks of this machine; the sides take turns in one run.  Writes docs/results/checkpoints.md and
a picture.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from benchmarks.checkpoints.other_plans import CASES, shares
from benchmarks.checkpoints.page import put_first
from benchmarks.pages import header
from benchmarks.two_ranks import first_answer

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PORT = 29_517
BLOCKS, TURNS = 13, 9  # 1.05 GB a rank
QUICK_BLOCKS, QUICK_TURNS = 2, 2
LIMIT_S = 1200.0
MOST_READ = 1.3  # of what a rank holds
Found = dict[str, list[float]]


class Goal(NamedTuple):
    """A way beside another one, and the most that the ratio of their seconds may be."""

    way: str
    beside: str
    most: float | None


GOALS = (
    Goal("Heddle saves", "DCP saves", 1.3),
    Goal("Heddle loads", "DCP loads", 1.3),
    Goal("Heddle loads", "reading", 1.5),
    Goal("digests", "Heddle saves", None),
    Goal("digests", "Heddle loads", None),
)
WAYS = ("Heddle saves", "DCP saves", "Heddle loads", "DCP loads", "reading", "digests")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state; writes nothing")
    quick = parser.parse_args().quick
    num_bytes, found = measure(*((QUICK_BLOCKS, QUICK_TURNS) if quick else (BLOCKS, TURNS)))
    worst = {case.name: max(shares(case)) for case in CASES}
    text = report(num_bytes, found, worst)
    print(text)
    if not quick:
        put_first(text)
        picture(found, RESULTS / "checkpoints.svg")


def measure(blocks: int, turns: int) -> tuple[int, Found]:
    """Bytes of a rank's state, and of every turn the seconds of each way."""
    found = first_answer("benchmarks.checkpoints.rank", PORT, [blocks, turns], LIMIT_S)
    return found.pop("bytes"), found


def ratios(found: Found, goal: Goal) -> list[float]:
    """Of the seconds of each turn, in order."""
    return sorted(a / b for a, b in zip(found[goal.way], found[goal.beside], strict=True))


def report(num_bytes: int, found: Found, worst: dict[str, float]) -> str:
    """The result file."""
    turns = len(found["digests"])
    lines = [
        "# Checkpoints",
        "",
        header("python -m benchmarks.checkpoints", ["worker/checkpoint"], ", shared with others."),
        "",
        f"Two ranks with {num_bytes / 1e9:.2f} GB of state each (TP 2; weights and moments, fp32),"
        " one thread each,",
        f"on one disk. Seconds until both ranks are done; {turns} turns in one run, in which the"
        " sides change places.",
        "All files are out of the page cache before each way, and DCP is",
        "`torch.distributed.checkpoint` with `FileSystemWriter(sync_files=True)`.",
        "",
        "| way | seconds (median) | least to most | GB/s of both ranks |",
        "| --- | --- | --- | --- |",
    ]
    for way in WAYS:
        middle_s = statistics.median(found[way])
        lines.append(
            f"| {way} | {middle_s:.2f} | {min(found[way]):.2f} to {max(found[way]):.2f} | "
            f"{2 * num_bytes / 1e9 / middle_s:.2f} |"
        )
    lines += [
        "",
        "| seconds of | beside | ratio of a turn (median) | least to most | goal |",
        "| --- | --- | --- | --- | --- |",
    ]
    for goal in GOALS:
        each = ratios(found, goal)
        most = "-" if goal.most is None else f"at most {goal.most}: {_met(each, goal.most)}"
        lines.append(
            f"| {goal.way} | {goal.beside} | {statistics.median(each):.2f} | "
            f"{each[0]:.2f} to {each[-1]:.2f} | {most} |"
        )
    lines += [
        "",
        "![seconds of each way](checkpoints.svg)",
        "",
        "Bytes read over bytes held, of the worst rank of another plan:",
        "",
        "| plan that saved to plan that loads | ratio |",
        "| --- | --- |",
        *(f"| {name} | {share:.3f} |" for name, share in worst.items()),
        "",
        "- A save of Heddle has both phases, with a digest of each block; DCP computes none. Both",
        "  bring files and their names to the disk.",
        "- A load of Heddle checks each block. Both write into tensors that are there.",
        f"- Of the bytes of a rank the disk gave {_from_disk(found, 'Heddle loads', num_bytes)} to"
        f" a load of Heddle, {_from_disk(found, 'DCP loads', num_bytes)} to DCP's.",
        "- `reading` reads the files of a rank into one buffer, one after the other.",
        "- `digests` are those of all blocks of a rank, from memory.",
        f"- No rank may read more than {MOST_READ} times what it holds:"
        f" {_met(list(worst.values()), MOST_READ, max)}.",
        "- The disk is a virtual one. Seconds depend on other work; ratios of a turn do less.",
    ]
    return "\n".join(lines) + "\n"


def _met(each: list[float], most: float, of=statistics.median) -> str:
    return "met" if of(each) <= most else "missed"


def _from_disk(found: Found, way: str, num_bytes: int) -> str:
    taken = statistics.median(found[f"{way}: bytes from the disk"])
    return f"{100 * taken / num_bytes:.0f} %"


def picture(found: Found, path: Path) -> None:
    """Seconds of each way: the median, and a dot for each turn."""
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for place, way in enumerate(reversed(WAYS)):
        colour = "C0" if way.startswith("Heddle") else "C1" if way.startswith("DCP") else "C7"
        axes.barh(place, statistics.median(found[way]), color=colour, alpha=0.6)
        axes.plot(found[way], [place] * len(found[way]), ".", color="black", markersize=4)
    axes.set_yticks(range(len(WAYS)), reversed(WAYS))
    axes.set_xlabel("seconds until both ranks are done")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
