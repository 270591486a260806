"""Measure how the stall of a change grows with the state that moves, and with that which stays.

    python -m benchmarks.stall_by_size [--short | --quick]

Real ranks, real DeepSpeed engines, gloo on loopback.  Writes docs/results/stall_by_size.md and a
picture, with the command, the date and the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from benchmarks.pages import header
from benchmarks.stall_by_size.changes import Measured, Size, cases, measure
from benchmarks.stall_by_size.links import bytes_per_s
from worker.data.making.prepare import prepare

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SIZES = {  # of ranks: the largest holds 2 GB with two ranks, 0.7 GB with five
    2: (Size(256, 8), Size(512, 8), Size(1024, 8), Size(1024, 16), Size(1024, 24)),
    5: (Size(256, 8), Size(512, 8), Size(768, 8)),
}
SHORT = {2: (Size(256, 8), Size(1024, 8), Size(1024, 16)), 5: (Size(512, 8),)}
QUICK = {2: (Size(256, 8), Size(512, 8)), 5: (Size(256, 8),)}
STAYS_S_PER_GB, MOVES_BY_GLOO = 0.02, 1.3  # goals
LINK_BYTES = 400_000_000
LARGE_BYTES = 1e9
TELLING_BYTES = 50e6  # fewer take about as long as the rest of a stall


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small states only; writes nothing")
    parser.add_argument("--short", action="store_true", help="half of the sizes")
    options = parser.parse_args()
    sizes_of = QUICK if options.quick else SHORT if options.short else SIZES
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text"
        prepare([Path(json.__file__).parent], data, None, None)
        before = bytes_per_s(LINK_BYTES)
        for ranks, sizes in sizes_of.items():
            for size in sizes:
                for case in cases(ranks, size.layers):
                    measured = measure(case, size, data)
                    after = bytes_per_s(LINK_BYTES)
                    found.append(replace(measured, link_bytes_per_s=(before + after) / 2))
                    before = after
                    print(row(found[-1]), flush=True)
    text = report(found)
    print(text)
    if not options.quick:
        (RESULTS / "stall_by_size.md").write_text(text, encoding="utf-8")
        picture(found, RESULTS / "stall_by_size.svg")


def row(one: Measured) -> str:
    """One line of the table."""
    parts = ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in one.parts.items())
    link, wire_s = one.link_bytes_per_s, one.moved_bytes / one.link_bytes_per_s
    ratio = f"{one.stall_s / wire_s:.2f}" if wire_s else "-"
    together = f"{one.stall_s * link / one.all_bytes:.2f}" if one.all_bytes else "-"
    return (
        f"| {one.ranks} | {one.case} | {one.state_bytes / 1e6:.0f} | {one.moved_bytes / 1e6:.0f} "
        f"| {1e3 * one.stall_s:.0f} | {1e3 * one.busiest_bytes / link:.0f} | {ratio} "
        f"| {together} "
        f"| {link / 1e9:.2f} "
        f"| {one.peak_bytes / 1e6:.0f} | {one.budget_bytes / 1e6:.0f} | {parts} |"
    )


def slope(found: list[Measured]) -> float:
    """Seconds a byte of state by which two ranks that move nothing stand longer (least squares)."""
    still = [one for one in found if one.moved_bytes == 0 and one.ranks == 2]
    if len(still) < 2:
        return 0.0
    sizes, stalls = [one.state_bytes for one in still], [one.stall_s for one in still]
    return statistics.linear_regression(sizes, stalls).slope


def ratios(found: list[Measured]) -> list[float]:
    """Stalls by the seconds of the same bytes by bare gloo, of what moves enough to tell."""
    moving = [one for one in found if one.moved_bytes > TELLING_BYTES]
    return [one.stall_s * one.link_bytes_per_s / one.moved_bytes for one in moving] or [0.0]


def report(found: list[Measured]) -> str:
    """The result file."""
    by_gloo = ratios(found)
    links = [one.link_bytes_per_s / 1e9 for one in found]
    lines = [
        "# Stall of a change by the size of the state",
        "",
        header(
            "python -m benchmarks.stall_by_size",
            ["worker", "migration"],
            f", shared with other work (load average {os.getloadavg()[2]:.0f}). Ranks, engines, "
            "groups and state are real; gloo over loopback.",
        ),
        "",
        "| column | meaning |",
        "| --- | --- |",
        "| state, moved | MB of the largest rank afterwards, and of the rank that receives most |",
        "| stall | milliseconds from the end of the last old step to the start of the "
        "first new one |",
        "| predicted | milliseconds: makespan of the transfer's plan at the rate of bare "
        "gloo between two idle ranks |",
        "| x bare gloo, x for all | stall over the time of bare gloo for the moved bytes, "
        "and for the bytes that all ranks receive |",
        "| peak | growth in MB of a rank's memory since before the preparation |",
        "| budget | MB that must be free beside the old plan, else the change is refused "
        "(docs/decisions/0014) |",
        "",
        "| ranks | what moves | state | moved | stall | predicted | x bare gloo | x for all | "
        "GB/s | peak | budget | parts |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(row, found),
        "",
        "![stall by bytes moved](stall_by_size.svg)",
        "",
        f"- Bare gloo between two idle ranks, before and after each change: {min(links):.2f} to "
        f"{max(links):.2f} GB/s. The column has the mean of both, which a row is compared with.",
        f"- What stays costs {slope(found) * 1e9:.4f} s a GB; the goal is below 0.02: "
        f"{met(slope(found) * 1e9 < STAYS_S_PER_GB)}.",
        f"- What moves takes {statistics.median(by_gloo):.2f} times as long as by bare gloo in the "
        f"median, {max(by_gloo):.2f} times at most (changes of more than 50 MB); the goal is 1.3: "
        f"{met(max(by_gloo) <= MOVES_BY_GLOO)}.",
        f"- Within it are {_within(found, TELLING_BYTES)} such changes; of those that move more "
        f"than 1 GB, {_within(found, LARGE_BYTES)}.",
        "- Small moves are dominated by what does not grow with them: the parts beside the "
        "transfer, and tensors below 256 KB, which are packed into messages whose memory is new.",
        f"- The most that a rank's memory grew beyond its budget: {_beyond(found) / 1e6:.0f} MB.",
        "- Groups, the engine's own objects and the allocator's slack are no part of the budget; a "
        "rank that receives everything is a new process, whose memory is not counted here.",
        "- The parts end when the last rank has ended them, and sum to the stall.",
        "- Two cores carry all ranks: where several receive, their transfers share what two idle "
        f"ranks have to themselves. By the bytes of all ranks it is {_for_all(found):.2f} times at "
        "most there.",
    ]
    return "\n".join(lines) + "\n"


def _beyond(found: list[Measured]) -> int:
    """Bytes beyond the budget, of the rank that exceeds it most."""
    return max(one.peak_bytes - one.budget_bytes for one in found)


def _within(found: list[Measured], least_bytes: float) -> str:
    """How many of the changes that move so much are within the goal."""
    some = ratios([one for one in found if one.moved_bytes > least_bytes])
    return f"{sum(0 < ratio <= MOVES_BY_GLOO for ratio in some)} of {len(some)}"


def _for_all(found: list[Measured]) -> float:
    """The largest ratio by what all ranks receive, of changes in which several do."""
    several = [one for one in found if one.all_bytes > one.moved_bytes > TELLING_BYTES]
    return max((one.stall_s * one.link_bytes_per_s / one.all_bytes for one in several), default=0.0)


def met(is_met: bool) -> str:
    """In a word."""
    return "met" if is_met else "missed"


def picture(found: list[Measured], path: Path) -> None:
    """Stall over bytes moved, and what bare gloo took around each."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for ranks in sorted({one.ranks for one in found}):
        rows = sorted((one.moved_bytes, one.stall_s) for one in found if one.ranks == ranks)
        axes.plot(
            [moved / 1e9 for moved, _ in rows], [s for _, s in rows], "o", label=f"{ranks} ranks"
        )
    line = sorted((one.moved_bytes, one.moved_bytes / one.link_bytes_per_s) for one in found)
    axes.plot(*zip(*((size / 1e9, s) for size, s in line), strict=True), "--", label="bare gloo")
    axes.set_xlabel("GB received by one rank")
    axes.set_ylabel("stall in seconds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
