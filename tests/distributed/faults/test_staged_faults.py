"""A part of the campaign of faults on wires through staging memory, as GPUs without NCCL have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.faults.campaign import KINDS, PARTS, POSSIBLE, WAYS, Fault, check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ENDING = tuple(way for way in POSSIBLE if way != "slow")


def cases() -> list[tuple[str, tuple[Fault, ...]]]:
    """One fault in each part of a change: every way and every kind of process has its turn."""
    found = []
    for turn, part in enumerate(PARTS):
        way = ENDING[turn % len(ENDING)]
        kinds = WAYS[way]
        found.append((part, (Fault(way, kinds[turn % len(kinds)], turn),)))
    return found


def test_every_way_and_kind_is_in_it() -> None:
    faults = [fault for _, found in cases() for fault in found]
    assert {fault.way for fault in faults} == set(ENDING)
    assert {fault.kind for fault in faults} == set(KINDS)


def test_faults_on_wires_through_staging_memory_cost_seconds_and_no_step(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", "")  # `check` sets it, the test gives it back
    monkeypatch.setenv("PYTHONPATH", "")
    check(tmp_path, corpus, cases(), "staged")
