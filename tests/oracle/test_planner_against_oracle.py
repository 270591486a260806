"""How often the planner finds what brute force proves.

Run it as a program to see every instance: `python -m tests.oracle.test_planner_against_oracle`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from planner.errors import Infeasible
from planner.search.driver import search
from tests.oracle.answers import committed
from tests.oracle.instances import Instance, instances

STEP = 10  # a tenth in a test run; all of them take two minutes
EVALUATIONS = 3000  # not seconds: the same answers on every machine
DENSE, DENSE_NEAR = 13, 13  # of 13
MOE, MOE_NEAR = 7, 7  # of 7
WITHIN = 0.005
EXACT = 1e-9


class Outcome(NamedTuple):
    """How the planner did on one instance; its gap is infinite where it has fewer holders."""

    instance: Instance
    gap: float


@cache
def outcomes(step: int = STEP) -> tuple[Outcome, ...]:
    return tuple(map(outcome, instances()[::step]))


def outcome(instance: Instance) -> Outcome:
    best = committed()[instance.name]
    try:
        answer = search(replace(instance.request, budget_evaluations=EVALUATIONS), instance.profile)
    except Infeasible:
        return Outcome(instance, 0.0 if best["iteration_s"] is None else math.inf)
    if best["iteration_s"] is None:
        return Outcome(instance, -math.inf)
    asked = instance.request.min_holders
    if min(answer.holders_min, asked) < min(best["holders_min"], asked):
        return Outcome(instance, math.inf)
    if min(answer.holders_min, asked) > min(best["holders_min"], asked):
        return Outcome(instance, -math.inf)
    return Outcome(instance, answer.cost.iteration_s / best["iteration_s"] - 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_planner_never_beats_the_proven_best():
    assert not [(o.instance.name, o.gap) for o in outcomes() if o.gap < -EXACT]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("is_moe", "exact", "near"), [(False, DENSE, DENSE_NEAR), (True, MOE, MOE_NEAR)]
)
def test_the_planner_finds_no_fewer_best_plans_than_it_did(is_moe, exact, near):
    """What was reached; the goal is 95 of 100 exactly, and all within half a per cent."""
    gaps = [o.gap for o in outcomes() if o.instance.is_moe is is_moe]
    assert sum(abs(gap) <= EXACT for gap in gaps) >= exact
    assert sum(gap <= WITHIN for gap in gaps) >= near


def main() -> None:
    """One line an instance, then the counts."""
    every = outcomes(1)
    for row in every:
        sys.stdout.write(f"{row.instance.name} {row.gap:+.4%}\n")
    for name, wanted in (("dense", False), ("moe", True)):
        gaps = [row.gap for row in every if row.instance.is_moe is wanted]
        exact = sum(abs(gap) <= EXACT for gap in gaps)
        near = sum(gap <= WITHIN for gap in gaps)
        sys.stdout.write(
            f"{name}: {exact} of {len(gaps)} equal, {near} within {WITHIN:.1%}, worst "
            f"{max(gaps):+.2%}, best {min(gaps):+.2%}\n"
        )


if __name__ == "__main__":
    main()
