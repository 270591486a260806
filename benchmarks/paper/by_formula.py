"""Heddle's plans by the formulas of the baselines, beside the plans that these rank by them.

A baseline that puts its own plan first by its own formula has searched well for what it believes.
Invariant: no evaluator of Heddle takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.baselines.layout import Layout
from benchmarks.baselines.own_price import OWN_PRICES
from benchmarks.evaluation.references import expanded
from benchmarks.paper.planners import NAMES
from benchmarks.paper.results import CellResults
from benchmarks.paper.store import FOLDER, read_cell
from benchmarks.paper.tables import HEDDLE, table


def rows_of(cell: CellResults, folder: Path = FOLDER) -> list[tuple[str, float, float | None]]:
    """(baseline, samples per second of its counted plan, of Heddle's) by the baseline's formula."""
    question = cell.cell.question()
    stored = read_cell(cell.cell, folder).get(HEDDLE)
    if question.workload.model.experts is not None or not stored or not stored["counted"]:
        return []
    layout = Layout.of_plan(expanded(stored["counted"]["plan"]))
    batch, found = question.workload.global_batch, []
    for one in cell.results:
        if one.planner in OWN_PRICES and one.own_samples_s:
            seconds = OWN_PRICES[one.planner](layout, question)
            found.append((one.planner, one.own_samples_s, batch / seconds if seconds else None))
    return found


def text(cells: Sequence[CellResults], folder: Path = FOLDER) -> str:
    """The table; empty where no formula says a plan."""
    rows = [
        (
            cell.cell.model,
            cell.cell.listed.name,
            NAMES[planner],
            f"{own:.1f}",
            "cannot be said" if ours is None else f"{ours:.1f}",
        )
        for cell in cells
        for planner, own, ours in rows_of(cell, folder)
    ]
    if not rows:
        return ""
    head = ("model", "composition", "formula of", "its plan that counts", "Heddle's plan at 3 s")
    return f"""## By the formulas of the baselines

Samples per second as each baseline believes them. Where Heddle's plan is lower, formula and
evaluator disagree about which plan is better.

{table(head, rows)}
"""
