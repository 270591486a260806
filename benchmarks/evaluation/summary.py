"""Summary of trials: one row of figures for each method.

Invariant: figures are over the compositions that any method or the reference has a plan for; a
method without a plan on one of them counts as 0 % there, a method that took no part has no figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.evaluation.run import EvaluatedComposition
from benchmarks.evaluation.trial import CurvePoint, Trial
from planner.request import Method


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of many trials."""

    mean: float  # of all
    p10: float  # a tenth of them is worse than this
    worst: float  # of all

    @staticmethod
    def of(values: Sequence[float], *, small_is_good: bool = False) -> Spread | None:
        """None without any value."""
        if not values:
            return None
        worst, share = (max(values), 0.9) if small_is_good else (min(values), 0.1)
        return Spread(statistics.fmean(values), float(np.quantile(values, share)), worst)


@dataclass(frozen=True, slots=True, kw_only=True)
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


def summarize(rows: Sequence[EvaluatedComposition]) -> tuple[MethodSummary, ...]:
    """One summary for each method, in the order of the trials."""
    return tuple(
        _summary([(trial, row.percent(trial)) for trial, row in zip(trials, rows, strict=True)])
        for trials in zip(*(row.trials for row in rows), strict=True)
    )


def _summary(tried: Sequence[tuple[Trial, float | None]]) -> MethodSummary:
    notes = [trial.note for trial, _ in tried if trial.plan is None]
    judged = [(trial, percent) for trial, percent in tried if percent is not None]
    return MethodSummary(
        method=tried[0][0].method,
        compositions=len(judged),
        plans=sum(trial.plan is not None for trial, _ in judged),
        note=notes[0] if notes else "",
        percent=Spread.of([percent for _, percent in judged]),
        throughput_samples_s=Spread.of([trial.throughput_samples_s for trial, _ in judged]),
        seconds=Spread.of([trial.seconds for trial, _ in judged], small_is_good=True),
        evaluations=Spread.of([trial.evaluations for trial, _ in judged], small_is_good=True),
    )


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
    best = [[max(p for at, p in points if at <= now) for points in curves] for now in grid]
    return tuple(map(CurvePoint, grid, map(statistics.fmean, best)))
