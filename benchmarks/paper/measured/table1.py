"""Table 1 of the paper beside what ran: marks of the capability tests, and of planning time.

Planning time is told from the stored cells of three GPU types: `yes` where a planner went through
its space in every one, `partly` in some, `no` in none.  Heddle's search has no end; its mark is
`yes` where half a second finds nearly all that its longest budget does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.baselines.registry import TITLES
from benchmarks.paper.measured.capabilities import NO, PARTLY, PLANNERS, ROWS, YES, marks
from benchmarks.paper.results import CellResults
from benchmarks.paper.tables import table

TIME = "Scalable planning time"
TIME_IN_PAPER = (YES, PARTLY, NO, YES, YES, YES)
TIME_WHY = "it goes through its space within its budget on 128, 256 and 512 GPUs of three types"
WITHIN = 0.98  # of the throughput at the baselines' budget that Heddle has after half a second
WHY_OTHER = {
    (TIME, "hexiscale"): "its walk through every number of pipelines outlasts seconds of budget",
    (TIME, "espresso"): "on the largest model and cluster its tree outlasts seconds of budget",
    (TIME, "heddle"): "on the larger model half a second of a busy machine is too short",
    ("Utilize partial GPUs", "amp"): "its degrees multiply to the number of GPUs, so all are used",
    ("Utilize partial GPUs", "metis"): "its device groups sum to the number of GPUs",
    ("Utilize partial GPUs", "hexiscale"): "its graph cut gives every GPU to a pipeline",
    ("Joint device-TP search", "amp"): "types follow its rank order; its TP did not answer here",
    ("Joint device-TP search", "metis"): "TP grows where memory is short, not where it pays",
    (
        "Joint device-TP search",
        "hexiscale",
    ): "its cut and its table know peak rates, and no profile answers",
    (
        "Profiled cost estimation",
        "metis",
    ): "its seconds are profiled; its memory is a profile times a factor",
}
_SAID = {YES: "yes", PARTLY: "partly", NO: "no"}


def measure() -> dict[str, Any]:
    """The marks of every row, as they are stored."""
    return {row.name: dict(zip(PLANNERS, marks(row), strict=True)) for row in ROWS}


def time_marks(cells: Sequence[CellResults]) -> dict[str, str]:
    """Marks of planning time from cells of three GPU types."""
    three = [one for one in cells if one.cell.listed.name.startswith("three-")]
    found = {}
    for planner in PLANNERS:
        if planner == "heddle":
            pairs = [(one.of("heddle-0.5"), one.of("heddle-same")) for one in three]
            ended = [a.samples_s >= WITHIN * b.samples_s for a, b in pairs if a and b]
        else:
            ended = [one.finished for cell in three if (one := cell.of(planner))]
        if ended:
            found[planner] = YES if all(ended) else PARTLY if any(ended) else NO
    return found


def text(stored: dict[str, Any], cells: Sequence[CellResults]) -> str:
    """The table, how each row is tested, and why marks differ."""
    rows, differing, how = [], [], []
    of_time = (TIME, time_marks(cells), TIME_IN_PAPER, TIME_WHY)
    listed = [(row.name, stored[row.name], row.paper, row.why) for row in ROWS]
    for name, found, paper, why in (*listed, of_time):
        said = []
        for planner, mark in zip(PLANNERS, paper, strict=True):
            here = found.get(planner)
            if here is None:
                said.append(f"not run ({_SAID[mark]})")
            elif here == mark:
                said.append(_SAID[here])
            else:
                said.append(f"**{_SAID[here]}** ({_SAID[mark]})")
                title = TITLES.get(planner, "Heddle")
                reason = WHY_OTHER.get((name, planner), "no reason is known")
                differing.append(
                    f"- {name}, {title}: {_SAID[here]} here, {_SAID[mark]} in the paper; {reason}."
                )
        rows.append((name, *said))
        how.append(f"- {name}: {why}.")
    head = ("capability", *(TITLES.get(name, "Heddle") for name in PLANNERS))
    newline = "\n"
    return f"""A mark is what a planner did on a small question that only a planner with the
capability can use. Where the paper has another mark, ours is bold and the paper's stands in
brackets.

{table(head, rows)}

## How each row is tested

{newline.join(how)}

## Where marks differ

{newline.join(differing) or "Nowhere."}
"""
