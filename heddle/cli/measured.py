"""A user's own measured plans beside what the cost model says of them.

Invariant: the cost is the formula's, as `heddle cost` prints it.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.cli.inputs import is_placed, plan_composition, plan_workload, read_plan
from planner.cost.evaluate import cost_of
from planner.errors import InvalidMeasurements, PlanningError
from planner.given_text import read_text
from planner.plans.plan import check
from planner.profiles.generator import find_profile
from planner.wording import kind_of, reason_of

MOST_STEP_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """One measured plan, and its cost by formula."""

    digest: str  # of the plan
    plan: str  # in words
    measured_s: float  # of a training step
    iteration_s: float  # by formula

    @property
    def error(self) -> float:
        """Excess of the formula over the measurement, as a share of it."""
        return self.iteration_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return {
            "digest": self.digest,
            "measured_s": self.measured_s,
            "iteration_s": self.iteration_s,
            "error_percent": 100 * self.error,
        }


def mean_error(rows: tuple[MeasuredCost, ...]) -> float:
    """The mean of the absolute errors, a share."""
    return statistics.fmean(abs(row.error) for row in rows)


def measured_costs(path: str, profiles: Path | None) -> tuple[MeasuredCost, ...]:
    """Costs of the measured plans of a file: a JSON list, or a JSON object a line.

    Args:
        path: the file; `-`: standard input.
        profiles: folder of profiles; None: those that come with Heddle.

    Raises:
        InvalidMeasurements: the file, or an entry of it, is wrong; names the entry.
    """
    found = []
    for number, entry in enumerate(_entries(path), 1):
        try:
            found.append(_costed(entry, profiles))
        except PlanningError as error:
            raise InvalidMeasurements(
                f"measurements {path}, entry {number}: {error}", field=error.field, code=error.code
            ) from None
    return tuple(found)


def _costed(entry: object, profiles: Path | None) -> MeasuredCost:
    if not isinstance(entry, dict):
        raise InvalidMeasurements(
            f"must be a plan with `measured_s`, found {kind_of(entry)}",
            field="measured_s",
            code="Malformed",
        )
    data = {key: value for key, value in entry.items() if key != "measured_s"}
    seconds = entry.get("measured_s")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        seconds = math.nan
    if not 0 < seconds <= MOST_STEP_S:
        raise InvalidMeasurements(
            f"`measured_s` is {json.dumps(entry.get('measured_s'))[:40]}; give the seconds of a "
            f"step, above 0 and at most {MOST_STEP_S:g}",
            field="measured_s",
            code="OutOfRange",
        )
    workload = plan_workload(data, None, None, None)
    composition = plan_composition(data, None, None)
    profile = find_profile(workload, profiles, off_grid=True)
    plan = check(read_plan(data, workload, composition, profile), workload, composition)
    cost = cost_of(plan, workload, composition, profile, placed=is_placed(data))
    return MeasuredCost(
        digest=plan.digest,
        plan=str(plan),
        measured_s=float(seconds),
        iteration_s=cost.iteration_s,
    )


def _entries(path: str) -> list[object]:
    """The entries of a file, at least one.

    Raises:
        InvalidMeasurements: it cannot be read, or is empty.
    """
    try:
        text = read_text(path)
        if text.lstrip().startswith("["):
            found = json.loads(text)
        else:
            try:
                found = [json.loads(text)]
            except ValueError:
                found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidMeasurements(
            f"measurements {path} cannot be read: {reason_of(error)}; give a JSON list of plans, "
            f"or a plan a line",
            code="Unreadable",
        ) from None
    if not found:
        raise InvalidMeasurements(
            f"measurements {path} hold no plan; add plans of `heddle plan --output json`, each "
            f"with `measured_s`",
            code="Missing",
        )
    return list(found)
