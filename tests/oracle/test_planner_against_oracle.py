"""How often the planner finds what brute force proves.

Run it as a program to see every instance: `python -m tests.oracle.test_planner_against_oracle`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import NamedTuple

import pytest

from planner.errors import Infeasible
from planner.search.driver import search
from tests.oracle.answers import committed
from tests.oracle.instances import Instance, instances

TENTHS = range(10)  # `make test` runs the first, `make test-system` the others
EVALUATIONS = 3000  # not seconds: the same answers on every machine
MISSED = {"12-moe": 0.02}  # instance whose best plan is not found, and the largest gap
EXACT = 1e-9


class Outcome(NamedTuple):
    """How the planner did on one instance; its gap is infinite where it has fewer holders."""

    instance: Instance
    gap: float


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
@pytest.mark.parametrize("tenth", TENTHS)
def test_the_planner_finds_what_is_proven_to_be_best(tenth):
    gaps = {o.instance.name: o.gap for o in map(outcome, instances()[tenth::10])}
    assert not {name: gap for name, gap in gaps.items() if gap < -EXACT}, "better than proven"
    assert not {name: gap for name, gap in gaps.items() if gap > MISSED.get(name, EXACT)}


def main() -> None:
    """One line an instance, then the counts."""
    every = tuple(map(outcome, instances()))
    for row in every:
        sys.stdout.write(f"{row.instance.name} {row.gap:+.4%}\n")
    for name, wanted in (("dense", False), ("moe", True)):
        gaps = [row.gap for row in every if row.instance.is_moe is wanted]
        exact = sum(abs(gap) <= EXACT for gap in gaps)
        sys.stdout.write(
            f"{name}: {exact} of {len(gaps)} equal, worst {max(gaps):+.2%}, best {min(gaps):+.2%}\n"
        )


if __name__ == "__main__":
    main()
