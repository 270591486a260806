"""Measure how the stall of a change grows with the state that moves, and with that which stays.

    python -m tests.benchmarks.stall_by_size [--short | --quick]

Real ranks, real DeepSpeed engines, gloo on loopback.  Writes docs/results/stall_by_size.md and a
picture, with the command, the date and the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from tests.benchmarks.stall_by_size.changes import Measured, Size, cases, measure
from tests.benchmarks.stall_by_size.links import bytes_per_s
from worker.data.prepare import prepare

RESULTS = Path(__file__).parents[3] / "docs" / "results"
SIZES = {  # of ranks: the largest holds 2 GB with two ranks, 0.7 GB with five
    2: (Size(256, 8), Size(512, 8), Size(1024, 8), Size(1024, 16), Size(1024, 24)),
    5: (Size(256, 8), Size(512, 8), Size(768, 8)),
}
SHORT = {2: (Size(256, 8), Size(1024, 8), Size(1024, 16)), 5: (Size(512, 8),)}
QUICK = {2: (Size(256, 8), Size(512, 8)), 5: (Size(256, 8),)}
GOALS = (
    "what stays: below 0.02 s a GB; what moves: at most 1.3 times as long as the same bytes take "
    "by bare gloo between two idle ranks of this run"
)


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
        link = bytes_per_s(400_000_000, 29_511)
        for ranks, sizes in sizes_of.items():
            for size in sizes:
                for case in cases(ranks, size.layers):
                    found.append(measure(case, size, data))
                    print(row(found[-1], link), flush=True)
        link = statistics.median([link, bytes_per_s(400_000_000, 29_512)])
    text = report(found, link)
    print(text)
    if not options.quick:
        (RESULTS / "stall_by_size.md").write_text(text, encoding="utf-8")
        picture(found, link, RESULTS / "stall_by_size.svg")


def row(one: Measured, link: float) -> str:
    """One line of the table; `link` in bytes a second."""
    parts = ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in one.parts.items())
    wire_s = one.moved_bytes / link
    ratio = f"{one.stall_s / wire_s:.2f}" if wire_s else "-"
    return (
        f"| {one.ranks} | {one.case} | {one.state_bytes / 1e6:.0f} | {one.moved_bytes / 1e6:.0f} "
        f"| {1e3 * one.stall_s:.0f} | {1e3 * one.busiest_bytes / link:.0f} | {ratio} "
        f"| {one.peak_bytes / 1e6:.0f} | {parts} |"
    )


def slope(found: list[Measured]) -> float:
    """Seconds a byte of state by which a change that moves nothing grows, by least squares."""
    still = [one for one in found if one.moved_bytes == 0]
    if len(still) < 2:
        return 0.0
    sizes, stalls = [one.state_bytes for one in still], [one.stall_s for one in still]
    return statistics.linear_regression(sizes, stalls).slope


def report(found: list[Measured], link: float) -> str:
    """The result file."""
    moving = [one for one in found if one.moved_bytes > 50e6]
    ratios = [one.stall_s / (one.moved_bytes / link) for one in moving] or [0.0]
    lines = [
        "# Stall of a change by the size of the state",
        "",
        "Command: `python -m tests.benchmarks.stall_by_size` (`--short`: half of the sizes)",
        f"Date: {datetime.datetime.now(datetime.UTC).date()}",
        f"Machine: {os.cpu_count()} cores, {platform.system()} {platform.machine()}, no GPU, "
        "shared with other work. Ranks, engines, groups and state are real; gloo over loopback.",
        "",
        "Sizes in MB: the state that the largest rank holds afterwards, and what the rank that "
        "receives most receives. Milliseconds from the end of the last old step to the start of "
        "the first new one; predicted is the makespan of the transfer's plan at the rate of bare "
        "gloo. The peak is how much a rank's memory grew from before the preparation.",
        "",
        "| ranks | what moves | state | moved | stall | predicted | x bare gloo | peak | parts |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(row(one, link) for one in found),
        "",
        "![stall by bytes moved](stall_by_size.svg)",
        "",
        f"- Bare gloo between two idle ranks: {link / 1e9:.2f} GB/s.",
        f"- What stays costs {slope(found) * 1e9:.4f} s a GB.",
        f"- What moves takes {statistics.median(ratios):.2f} times as long as by bare gloo in the "
        f"median, {max(ratios):.2f} times at most (changes of more than 50 MB).",
        f"- Goals: {GOALS}.",
    ]
    return "\n".join(lines) + "\n"


def picture(found: list[Measured], link: float, path: Path) -> None:
    """Stall over bytes moved, and the line of bare gloo."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for ranks in sorted({one.ranks for one in found}):
        rows = sorted((one.moved_bytes, one.stall_s) for one in found if one.ranks == ranks)
        axes.plot(
            [moved / 1e9 for moved, _ in rows], [s for _, s in rows], "o", label=f"{ranks} ranks"
        )
    most = max(one.moved_bytes for one in found)
    axes.plot([0, most / 1e9], [0, most / link], "--", label="bare gloo, two idle ranks")
    axes.set_xlabel("GB received by one rank")
    axes.set_ylabel("stall in seconds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
