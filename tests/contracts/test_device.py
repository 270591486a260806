"""Every `Device` keeps all clauses of the contract: the processor, and the simulated one."""

from __future__ import annotations

import pytest

from tests.contracts.device_contract import CLAUSES
from tests.unit.worker.ranks import run_ranks


@pytest.fixture(scope="module", params=["cpu", "simulated"])
def found(request):
    (answer,) = run_ranks(f"tests.contracts.device_contract:{request.param}", 1)
    return answer


@pytest.mark.slow
def test_a_device_keeps_every_clause(found):
    assert found["kept"] == CLAUSES


@pytest.mark.slow
def test_one_that_does_not_answer_once_its_world_is_broken_is_an_error_of_the_device(found):
    assert found["silent"] == [[1.0] * 3, None, "device", "DeviceSilent"]
