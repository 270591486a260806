"""A part of the campaign of faults on wires through staging memory, as GPUs without NCCL have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.faults.campaign import KINDS, PARTS, POSSIBLE, WAYS, check, in_each_part
from tests.distributed.faults.ways import marked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ENDING = tuple(way for way in WAYS if way != "slow")
CASES = in_each_part(PARTS, [way for way in ENDING if way in POSSIBLE], KINDS)


@pytest.mark.parametrize("way", marked(ENDING))
def test_every_way_is_in_it(way: str) -> None:
    assert way in {fault.way for _, faults in CASES for fault in faults}


def test_every_kind_is_in_it() -> None:
    assert {fault.kind for _, faults in CASES for fault in faults} == set(KINDS)


def test_faults_on_wires_through_staging_memory_cost_seconds_and_no_step(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", "")  # `check` sets it, the test gives it back
    monkeypatch.setenv("PYTHONPATH", "")
    check(tmp_path, corpus, CASES, "staged")
