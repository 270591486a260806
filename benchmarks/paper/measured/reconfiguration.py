"""The reconfiguration breakdown: two A6000 join twice, part by part, beside the paper's figures.

The job is that of the growing cluster, on emulated devices: its stalls are of this machine and of
a narrow model, so they show which parts there are, and say nothing of a GPU's.
Source: Heddle, section 6.4 (reconfiguration overhead), for the joins and the paper's figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import Cell
from benchmarks.paper.measured.emulated_job import Size, train
from benchmarks.paper.measured.stand_in import BATCH, MODEL, SLOWDOWN
from benchmarks.paper.planners import plan_cell
from benchmarks.paper.tables import HEDDLE, table
from benchmarks.stall.parts import table as parts_table
from planner.training.composition_sets import ListedComposition

REPEATS = 4
NODES = ("rtx-pro-6000=1x2", "rtx-pro-6000=1x2,a6000=1x2", "rtx-pro-6000=1x2,a6000=2x2")
BUDGET_S = 3.0
PAPER = (
    ("planning", "2.16 s, training paused", "beside the training"),
    ("release of resources", "0.4 s to 0.8 s", "drain"),
    ("rebuild of the process groups", "2.6 s to 3.1 s", "before the pause"),
    ("transfer of the state, 5.2 GB a rank", "about 4.0 s", "transfer, verify"),
    ("build of the engine", "2.1 s to 2.7 s", "before the pause; flip"),
    ("all", "19.2 s to 21.5 s", "stall"),
)


def measure() -> dict[str, Any]:
    """The changes of each repeat; see `GrowingRun.found`."""
    rows = [
        plan_cell(Cell(MODEL, ListedComposition("joins", text, BATCH)), HEDDLE, BUDGET_S)[HEDDLE]
        for text in NODES
    ]
    sizes = [
        Size(
            nodes=ListedComposition("joins", text).composition,
            plan=expanded(row["counted"]["plan"]),
            search_s=row["seconds"],
        )
        for text, row in zip(NODES, rows, strict=True)
    ]
    return {
        "repeats": [train(sizes, 0.0)["changes"] for _ in range(REPEATS)],
        "search_s": [size.search_s for size in sizes],
    }


def stalls_s(found: Mapping[str, Any]) -> list[float]:
    """Of every join of every repeat; a machine that starves ranks adds losses, which are none."""
    return [
        change["stall_s"]
        for changes in found["repeats"]
        for change in changes
        if change["reason"] == "join"
    ]


def text(found: Mapping[str, Any]) -> str:
    """The page."""
    runs = [
        {
            "epochs": [
                {
                    "reason": f"{change['reason']}, {change['gpus']} GPUs",
                    "reconfiguration": change,
                }
                for change in changes
            ]
        }
        for changes in found["repeats"]
    ]
    moved = [change["bytes_moved"] / 1e6 for changes in found["repeats"] for change in changes]
    searches = ", ".join(f"{seconds:.2f} s" for seconds in found["search_s"][1:])
    return f"""Two A6000 join a node of two RTX PRO 6000, and two more join later;
{len(runs)} repeats. Devices are emulated and {SLOWDOWN:g} times slowed; processes, groups, state
and its movement are real.
The model is a stand-in, as deep as GPT-Neo-2.7B and narrow: {min(moved):.1f} MB to
{max(moved):.1f} MB move in a change. The stalls below are no GPU's.

A change after a loss is none of the experiment: the machine starved a rank until it was taken for
lost. From the end of the last old step to the start of the first new one, in milliseconds, median /
maximum over the repeats:

{chr(10).join(parts_table(runs))}

The searches took {searches}; training went on meanwhile, as during the start of the new ranks.

{table(("part", "the paper", "where it is here"), PAPER)}
"""
