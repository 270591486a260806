"""What trials say together: one row of figures for each method.

Invariant: figures are over the compositions that any method or the reference has a plan for; a
method without a plan on one of them counts as 0 % there, a method that took no part has no figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from planner.evaluation.run import EvaluatedComposition
from planner.evaluation.trial import CurvePoint
from planner.request import Method


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of many trials."""

    mean: float  # of all
    p10: float  # a tenth of them is worse than this
    worst: float  # of all

    @staticmethod
    def of(values: Sequence[float], *, small_is_good: bool = False) -> Spread:
        """Of at least one value."""
        worst, share = (max(values), 0.9) if small_is_good else (min(values), 0.1)
        return Spread(statistics.fmean(values), float(np.quantile(values, share)), worst)


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method on all compositions."""

    method: Method  # its name
    compositions: int  # that it was judged on
    plans: int  # how many of these it has a plan for
    note: str  # of the first trial that has no plan; empty if all have one
    percent: Spread | None  # of the reference; None if it took no part
    throughput_samples_s: Spread | None  # of its plans
    seconds: Spread | None  # of its searches
    evaluations: Spread | None  # plans that it priced

    def to_json(self) -> dict[str, Any]:
        """The row of `summary[]`."""
        return asdict(self)


def summarize(rows: Sequence[EvaluatedComposition]) -> tuple[MethodSummary, ...]:
    """One summary for each method, in the order of the trials."""
    found = []
    for index in range(len(rows[0].trials)):
        judged = [
            (trial, percent)
            for row in rows
            for trial in (row.trials[index],)
            for percent in (row.percent(trial),)
            if percent is not None
        ]
        without = [row.trials[index] for row in rows if row.trials[index].plan is None]
        trials = [trial for trial, _ in judged]
        found.append(
            MethodSummary(
                rows[0].trials[index].method,
                len(judged),
                sum(trial.plan is not None for trial in trials),
                without[0].note if without else "",
                Spread.of([percent for _, percent in judged]) if judged else None,
                Spread.of([trial.throughput_samples_s for trial in trials]) if judged else None,
                Spread.of([t.seconds for t in trials], small_is_good=True) if judged else None,
                Spread.of([t.evaluations for t in trials], small_is_good=True) if judged else None,
            )
        )
    return tuple(found)


def mean_curve(rows: Sequence[EvaluatedComposition], method: Method) -> tuple[CurvePoint, ...]:
    """Per cent of the reference by evaluation, the mean over the compositions.

    It begins where the method has a plan for every composition that it has a curve for.
    """
    curves = [
        [(at, 100 * best / row.reference_samples_s) for at, best in trial.curve]
        for row in rows
        for trial in row.trials
        if trial.method == method and trial.curve
    ]
    if not curves:
        return ()
    begin = max(points[0][0] for points in curves)
    grid = sorted({at for points in curves for at, _ in points if at >= begin})
    return tuple(
        CurvePoint(
            evaluations,
            statistics.fmean(
                max(percent for at, percent in points if at <= evaluations) for points in curves
            ),
        )
        for evaluations in grid
    )
