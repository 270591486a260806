"""What the stored plans are worth today: every plan is priced again from its stored decisions.

Invariant: no figure comes from elsewhere.  A plan that no plan of Heddle can say has no stored
decisions, and keeps the price of the day on which it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.baselines.judge import fits
from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import Cell
from benchmarks.paper.planners import planners_of
from benchmarks.paper.store import FOLDER, Row, read_cell
from planner.cost.evaluate import cost_of
from planner.search.candidate import best_placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One planner in one cell; samples per second are modelled, seconds measured."""

    planner: str
    samples_s: float  # of the first plan that fits, where the planner puts it; 0: none fits
    replaced_samples_s: float  # of the same plan where Heddle puts it; 0: it is no plan of Heddle
    best_samples_s: float  # of the best plan that the planner returned and that was looked at
    own_samples_s: float  # of the first that fits, by the planner's own formula
    rank: int  # of the first that fits, in the planner's own order, from 0
    seconds: float  # of the search
    budget_s: float
    plans_priced: int
    finished: bool  # whether it went through its whole space
    unused_gpus: int
    beyond: str  # what it says and no plan of Heddle can
    gpus_by_type: Mapping[str, int]  # that it uses; empty where no plan of Heddle says it
    refused: Mapping[str, int]  # plans before the first that fits, or all, by reason

    @property
    def most_samples_s(self) -> float:
        """In the better of both placements."""
        return max(self.samples_s, self.replaced_samples_s)

    def to_json(self) -> dict[str, Any]:
        """As a row of the JSON file of a figure."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class CellResults:
    """All planners of one cell that are stored, in the order of the figure."""

    cell: Cell
    results: tuple[Result, ...]
    commits: tuple[str, ...]  # whose code planned, sorted
    dates: tuple[str, ...]  # sorted
    loads: tuple[float, ...] = ()  # of the machine at each search, where it was noted; sorted

    def of(self, planner: str) -> Result | None:
        """A planner's result."""
        return next((one for one in self.results if one.planner == planner), None)

    def best(self, planners: Sequence[str]) -> Result | None:
        """The fastest of some, each in the better of its placements; None if none has a plan."""
        found = [one for one in self.results if one.planner in planners and one.most_samples_s]
        return max(found, key=lambda one: one.most_samples_s, default=None)


def results_of(cell: Cell, folder: Path = FOLDER) -> CellResults:
    """The stored plans of a cell at today's prices."""
    rows = read_cell(cell, folder)
    wanted = [name for name in planners_of(cell) if name in rows]
    return CellResults(
        cell,
        tuple(_result(cell, name, rows[name]) for name in wanted),
        tuple(sorted({rows[name]["commit"] for name in wanted})),
        tuple(sorted({rows[name]["date"] for name in wanted})),
        tuple(sorted(rows[name]["load"] for name in wanted if "load" in rows[name])),
    )


def _result(cell: Cell, planner: str, row: Row) -> Result:
    counted = row["counted"]
    batch = cell.question().workload.global_batch
    own_s, replaced_s = _seconds(cell, counted)
    best_s, _ = _seconds(cell, row["best"]) if row["best"] != counted else (own_s, 0.0)
    return Result(
        planner=planner,
        samples_s=_rate(batch, own_s),
        replaced_samples_s=_rate(batch, replaced_s),
        best_samples_s=_rate(batch, best_s),
        own_samples_s=_rate(batch, counted["own_s"] if counted else 0.0),
        rank=counted["rank"] if counted else -1,
        seconds=row["seconds"],
        budget_s=row["budget_s"],
        plans_priced=row["plans_priced"],
        finished=row["finished"],
        unused_gpus=counted["unused_gpus"] if counted else 0,
        beyond=counted["beyond"] if counted else "",
        gpus_by_type=_gpus_by_type(counted),
        refused=row["refused"],
    )


def _gpus_by_type(stored: dict[str, Any] | None) -> dict[str, int]:
    if stored is None or stored["plan"] is None:
        return {}
    return dict(sorted(expanded(stored["plan"]).gpus_by_type.items()))


def _rate(batch: int, seconds: float) -> float:
    return batch / seconds if seconds else 0.0


def _seconds(cell: Cell, stored: dict[str, Any] | None) -> tuple[float, float]:
    """(where the planner puts it, where Heddle does) today; 0 where there is no such thing."""
    if stored is None:
        return 0.0, 0.0
    if stored["plan"] is None:
        return stored["iteration_s"], 0.0
    question, plan = cell.question(), expanded(stored["plan"])
    asked = (question.workload, question.composition, question.profile)
    if not fits(plan, question):
        return 0.0, 0.0
    there = best_placed(plan.templates, question.workload, question.composition, question.profile)
    return (
        cost_of(plan, *asked).iteration_s,
        0.0 if there is None else cost_of(there, *asked).iteration_s,
    )
