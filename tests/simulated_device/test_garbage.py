"""No number that came after the flag is used, whatever the survivor awaited, and mutants do."""

from __future__ import annotations

import pytest

from tests.simulated_device.garbage import CASES, MUTANTS
from tests.simulated_device.lives import told_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
LIMIT_S = 600.0  # on a busy machine; a quiet one needs a fraction
# One receive and one reduction; a gradient and an evaluation wait at the same two places.
FIRST = ("activation", "partial")
HELD = [1, None]  # a step was trained in peace, and no gradients of the next one are in
BROUGHT = {"activation": "recv", "gradient": "recv", "partial": "all_reduce"}


def told_of(tmp_path_factory, *stories):
    """What the survivor of each story said."""
    found = told_once(tmp_path_factory, stories, LIMIT_S)
    return {name: ranks[1 - CASES[name.split(":")[1]].victim] for name, ranks in found.items()}


def said(rows, kind):
    return [value for of, value in rows if of == kind]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the survivor of a case said; the first ones are played together, as are the others."""
    found = {}

    def of(case):
        if case not in found:
            group = FIRST if case in FIRST else tuple(one for one in CASES if one not in FIRST)
            rows = told_of(tmp_path_factory, *(f"garbage:{one}:right" for one in group))
            found.update({name.split(":")[1]: row for name, row in rows.items()})
        return found[case]

    return of


@pytest.mark.parametrize(
    "case", [c if c in FIRST else pytest.param(c, marks=pytest.mark.system) for c in CASES]
)
def test_a_survivor_gets_garbage_and_uses_none_of_it(case, told):
    rows = told(case)
    assert BROUGHT.get(case, "all_reduce") in said(rows, "garbage")[0], "nothing was tried"
    assert said(rows, "used") == []
    assert said(rows, "held") == [HELD]
    before, after = said(rows, "bits")
    assert before == after


@pytest.mark.system
def test_each_mutant_takes_garbage_for_the_gradients_of_the_step(tmp_path_factory):
    mutants = [f"garbage:last:{mutant}" for mutant in MUTANTS if mutant != "right"]
    for rows in told_of(tmp_path_factory, *mutants).values():
        assert said(rows, "held") == [[1, 1]]
