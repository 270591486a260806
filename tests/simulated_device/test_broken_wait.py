"""No number counts that was read in a world that broke meanwhile, and a wrong order is seen."""

from __future__ import annotations

import pytest

from tests.unit.worker.ranks import run_ranks


@pytest.fixture(scope="module")
def found():
    (answer,) = run_ranks("tests.simulated_device.broken_wait:claims", 1)
    return answer


@pytest.mark.slow
def test_a_step_whose_world_broke_in_the_wait_holds_no_gradients_and_is_not_counted(found):
    assert found["right"] == [True, None, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", ["flag asked before the wait", "break without flag", "gradients_step early"]
)
def test_a_mutant_is_found_out(mutant, found):
    assert found[mutant] != found["right"]
