"""Every `Device` keeps all clauses of the contract: the processor, and the simulated one."""

from __future__ import annotations

import pytest

from tests.contracts.device_contract import CLAUSES
from tests.unit.worker.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_a_device_keeps_every_clause(device):
    assert run_ranks(f"tests.contracts.device_contract:{device}", 1) == [CLAUSES]
