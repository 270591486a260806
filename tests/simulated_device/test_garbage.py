"""No number that came after the flag is used, whatever the survivor awaited, and mutants do."""

from __future__ import annotations

import pytest

from tests.simulated_device.garbage import CASES, MUTANTS
from tests.simulated_device.lives import lives
from tests.unit.worker.data.lines import prepared_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
LIMIT_S = 600.0  # on a busy machine; a quiet one needs a fraction
HELD = [1, None]  # a step was trained in peace, and no gradients of the next one are in
BROUGHT = {"activation": "recv", "gradient": "recv", "partial": "all_reduce"}


def told_of(tmp_path_factory, *stories):
    """What the survivor of each story said."""
    data = prepared_lines(tmp_path_factory.mktemp("lines"))
    found = lives(tmp_path_factory.mktemp("lives"), data, stories, LIMIT_S)
    return {name: ranks[1 - CASES[name.split(":")[1]].victim] for name, ranks in found.items()}


def said(rows, kind):
    return [value for of, value in rows if of == kind]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return told_of(tmp_path_factory, *(f"garbage:{case}:right" for case in CASES))


@pytest.mark.parametrize("case", CASES)
def test_a_survivor_gets_garbage_and_uses_none_of_it(case, told):
    rows = told[f"garbage:{case}:right"]
    assert BROUGHT.get(case, "all_reduce") in said(rows, "garbage")[0], "nothing was tried"
    assert said(rows, "used") == []
    assert said(rows, "held") == [HELD]
    before, after = said(rows, "bits")
    assert before == after


@pytest.mark.system
def test_each_mutant_takes_garbage_for_the_gradients_of_the_step(tmp_path_factory):
    mutants = [f"garbage:partial:{mutant}" for mutant in MUTANTS if mutant != "right"]
    for rows in told_of(tmp_path_factory, *mutants).values():
        assert said(rows, "held") == [[1, 1]]
