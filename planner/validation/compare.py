"""How far the cost model is from measurements: errors by set, and the regret of picking by it.

Invariant: every row counts once; a set's figures are also given for each half, so that what the
constants were fitted on never hides in what is reported.
Pick regret: in a group of rows with equal GPUs, batch and model, how much slower the row is that
the model prices fastest than the row that was measured fastest.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planner.cost.evaluate import price
from planner.profiles.generator import RESERVE_BYTES, RESERVE_SHARE
from planner.validation.measured_sets import MeasuredPlan, MeasuredSet

MIN_GROUP = 5
WORST = 5


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A measured plan with its price.

    Attributes:
        measured: the plan.
        seconds: of an iteration, by the formula.
        memory_bytes: predicted peak of any GPU: what the plan holds, and the share and constant
            that allocator and context take besides.
    """

    measured: MeasuredPlan
    seconds: float
    memory_bytes: float

    @property
    def error(self) -> float:
        """Relative error of the time; above 0 where the price is too high."""
        return self.seconds / self.measured.seconds - 1

    @property
    def memory_error(self) -> float | None:
        """Relative error of the memory; None where none was measured."""
        if self.measured.memory_bytes is None:
            return None
        return self.memory_bytes / self.measured.memory_bytes - 1


@dataclass(frozen=True, slots=True)
class Figures:
    """Errors over some rows, in percent.

    Attributes:
        rows: how many.
        mean: of the absolute errors.
        median: of the absolute errors.
        p90: of the absolute errors.
        bias: mean of the signed errors; below 0 where prices are too low.
        memory_mean: of the absolute errors of memory; None where none was measured.
        groups: in which a plan is picked.
        regret_mean: of the pick; None without groups.
        regret_max: of the pick; None without groups.
    """

    rows: int
    mean: float
    median: float
    p90: float
    bias: float
    memory_mean: float | None
    groups: int
    regret_mean: float | None
    regret_max: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data; percentages."""
        return {
            "rows": self.rows,
            "mean_error_percent": self.mean,
            "median_error_percent": self.median,
            "p90_error_percent": self.p90,
            "bias_percent": self.bias,
            "memory_mean_error_percent": self.memory_mean,
            "groups": self.groups,
            "pick_regret_mean_percent": self.regret_mean,
            "pick_regret_max_percent": self.regret_max,
        }


@dataclass(frozen=True, slots=True)
class SetReport:
    """What one set says about the cost model.

    Attributes:
        name: of the set.
        all: figures over all rows.
        fitted: over the half that constants were fitted on; None if it is empty.
        held_out: over the other half; None if it is empty.
        worst: the rows with the largest errors, worst first.
    """

    name: str
    all: Figures
    fitted: Figures | None
    held_out: Figures | None
    worst: tuple[PricedPlan, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            **self.all.to_json(),
            "fitted_half": self.fitted and self.fitted.to_json(),
            "held_out_half": self.held_out and self.held_out.to_json(),
            "worst": [
                {
                    "row": row.measured.label,
                    "measured_s": row.measured.seconds,
                    "priced_s": row.seconds,
                    "error_percent": 100 * row.error,
                }
                for row in self.worst
            ],
        }


def price_measured(measured: MeasuredPlan) -> PricedPlan:
    """Price one measured plan with the one evaluator."""
    priced = price(measured.plan, measured.workload, measured.composition, measured.profile)
    held = priced.peak_memory_bytes * (1 + RESERVE_SHARE) + RESERVE_BYTES
    return PricedPlan(measured, priced.iteration_s, held)


def report(measured: MeasuredSet, advance: Callable[[], None] = lambda: None) -> SetReport:
    """Price every row of a set.

    Args:
        measured: the set.
        advance: called after each row, for a progress bar.
    """
    rows = []
    for plan in measured.plans:
        rows.append(price_measured(plan))
        advance()
    return SetReport(
        measured.name,
        figures(rows),
        _figures_or_none([row for row in rows if row.measured.fitted]),
        _figures_or_none([row for row in rows if not row.measured.fitted]),
        tuple(sorted(rows, key=lambda row: -abs(row.error))[:WORST]),
    )


def _figures_or_none(rows: Sequence[PricedPlan]) -> Figures | None:
    return figures(rows) if rows else None


def figures(rows: Sequence[PricedPlan]) -> Figures:
    """The figures of at least one row."""
    errors = sorted(100 * abs(row.error) for row in rows)
    memory = [100 * abs(row.memory_error) for row in rows if row.memory_error is not None]
    regrets = [100 * regret for regret in pick_regrets(rows)]
    return Figures(
        len(rows),
        statistics.fmean(errors),
        statistics.median(errors),
        quantile(errors, 0.9),
        statistics.fmean(100 * row.error for row in rows),
        statistics.fmean(memory) if memory else None,
        len(regrets),
        statistics.fmean(regrets) if regrets else None,
        max(regrets, default=None),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of ascending values lies, linear between neighbours."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def pick_regrets(rows: Sequence[PricedPlan]) -> list[float]:
    """The regret of each group of at least five rows."""
    groups: defaultdict[tuple[object, ...], list[PricedPlan]] = defaultdict(list)
    for row in rows:
        groups[row.measured.group].append(row)
    regrets = []
    for group in groups.values():
        if len(group) >= MIN_GROUP:
            picked = min(group, key=lambda row: row.seconds)
            fastest = min(row.measured.seconds for row in group)
            regrets.append(picked.measured.seconds / fastest - 1)
    return regrets
