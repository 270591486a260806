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
    assert found["AsksAfterTheWait"] == [True, None, 0]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["AsksBeforeTheWait", "BreaksWithoutFlag"])
def test_a_device_that_asks_too_early_or_a_break_without_a_flag_is_found_out(wrong, found):
    assert found[wrong] != found["AsksAfterTheWait"]
