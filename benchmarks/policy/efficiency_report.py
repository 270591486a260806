"""The tables of search efficiency: per cent of the reference by method and budget of plans."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.policy.efficiency import CASES, METHODS

Row = dict[str, Any]
Percent = Callable[[Row], float | None]


def efficiency_rows(rows: Sequence[Row], percent: Percent) -> list[tuple[str, ...]]:
    """Head and lines: each budget on the paper's composition, then as a mean over all."""
    head = ("composition", "plans", *(f"`{method}`" for method in METHODS))
    lines: list[tuple[str, ...]] = [(*head, "`random` behind `policy`")]
    cases = [case for case in CASES if any(row["case"] == case for row in rows)]
    budgets = sorted({row["budget"] for row in rows})
    for name, group in ((cases[0], cases[:1]), (f"mean of {len(cases)}", cases)):
        for budget in budgets:
            own = [r for r in rows if r["case"] in group and r["budget"] == budget]
            mean = {
                method: _mean(percent(row) for row in own if row["method"] == method)
                for method in METHODS
            }
            lines.append(
                (
                    name,
                    f"{budget:,}",
                    *(_cell(mean[m], [r for r in own if r["method"] == m]) for m in METHODS),
                    _behind(mean["random"], mean["policy"]),
                )
            )
    return lines


def catching_up(rows: Sequence[Row]) -> str:
    """After how many plans each method reaches what the policy has after the fewest."""
    first = min(row["budget"] for row in rows)
    case = next(case for case in CASES if any(row["case"] == case for row in rows))
    own = [r for r in rows if (r["case"], r["method"], r["budget"]) == (case, "policy", first)]
    if not own:
        return ""
    goal = statistics.fmean(row["throughput_samples_s"] for row in own)
    said = []
    for method in METHODS:
        if method == "policy" or not any(row["method"] == method for row in rows):
            continue
        needed = plans_needed(rows, case, method, goal)
        said.append(f"`{method}` {'never' if needed is None else f'at {needed:,.0f}'}")
    return (
        f"What `policy` has after {first:,} plans on {case} ({goal:.1f} samples/s), the others "
        f"reach, of the budgets above: {', '.join(said)}."
    )


def plans_needed(rows: Sequence[Row], case: str, method: str, goal: float) -> float | None:
    """Plans after which the mean over seeds reaches a throughput on a composition."""
    own = [row for row in rows if (row["case"], row["method"]) == (case, method)]
    for budget in sorted({row["budget"] for row in own}):
        at = [row for row in own if row["budget"] == budget]
        if statistics.fmean(row["throughput_samples_s"] for row in at) >= goal:
            return statistics.fmean(row["evaluations"] for row in at)
    return None


def _mean(percents: Iterable[float | None]) -> float | None:
    known = [value for value in percents if value is not None]
    return statistics.fmean(known) if known else None


def _cell(mean: float | None, rows: Sequence[Row]) -> str:
    if mean is None:
        return "-"
    without = sum(row["throughput_samples_s"] == 0 for row in rows)
    return f"{mean:.2f} %" + (f" ({without} of {len(rows)} without a plan)" if without else "")


def _behind(mean: float | None, first: float | None) -> str:
    return "-" if not mean or not first else f"{100 * (1 - mean / first):.1f} %"
