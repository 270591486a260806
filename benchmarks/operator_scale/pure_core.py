"""Measure what the operator computes of one job, at 50, 200 and 1,000 nodes.

Prints a table and writes it into its section of `docs/results/operator_scale.md`.
`python -m benchmarks.operator_scale.pure_core`; it needs no server.
"""

from __future__ import annotations

import math

from benchmarks.operator_scale.document import with_section
from benchmarks.pages import ROOT, header
from tests.pure_core import PureCore

TITLE = "## The pure core, of one job"
NODES = (50, 200, 1000)
REPEATS = 3  # the least of them counts
Row = tuple[str, tuple[float, ...]]


def measure() -> list[Row]:
    """CPU seconds of each function, one for each number of nodes."""
    cores = [PureCore(nodes) for nodes in NODES]
    return [
        (name, tuple(min(core.cpu_s(name) for _ in range(REPEATS)) for core in cores))
        for name in cores[0].work
    ]


def growth(costs_s: tuple[float, ...]) -> float:
    """The power of the number of nodes with which the cost grows, between the two largest."""
    return math.log(costs_s[-1] / costs_s[-2]) / math.log(NODES[-1] / NODES[-2])


def report(rows: list[Row]) -> str:
    """The section, the costly ones first."""
    table = "\n".join(
        f"| {name} | {' | '.join(f'{1000 * s:.1f}' for s in costs_s)} | {growth(costs_s):.2f} |"
        for name, costs_s in sorted(rows, key=lambda row: -row[1][-1])
    )
    return f"""{TITLE}

{header("python -m benchmarks.operator_scale.pure_core", ["heddle_operator"], ",")}
shared with other work.

CPU milliseconds of one call, for a job on nodes of 8 GPUs; the least of {REPEATS}. The goal is 150
for a look at a job of 1,000 nodes, and 500 for its loss of a node. The power says how the cost
grows from {NODES[-2]} to {NODES[-1]} nodes: 1 is linear.

| computed | {" | ".join(f"{nodes} nodes" for nodes in NODES)} | power |
| --- |{" --- |" * len(NODES)} --- |
{table}
"""


def main() -> None:
    """Measure, print and write."""
    text = report(measure())
    print(text)
    path = ROOT / "docs" / "results" / "operator_scale.md"
    path.write_text(with_section(path.read_text() if path.exists() else "", text))


if __name__ == "__main__":
    main()
