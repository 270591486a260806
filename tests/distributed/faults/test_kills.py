"""Every kind of process is killed, stopped, cut off or slowed in every part of a change: the job
goes on exactly.

`make test-kills` runs it; `-k "stop and vote"` runs a part of it again, and HEDDLE_WIRE=staged lets
the payload travel through staging memory.  Over groups with NCCL's law, which notice no dead peer
and end with garbage, each way has each part once, and the kinds of processes take turns.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.distributed.faults.campaign import PARTS, TRIED, WAYS, Fault, check, in_each_part
from tests.distributed.faults.ways import marked

ENTRY = "staged" if os.environ.get("HEDDLE_WIRE") == "staged" else "pausing"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("way", marked(WAYS))
def test_the_job_survives_every_kind_of_fault_in_every_part_of_a_change(
    way: str, part: str, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", "")  # `check` sets it, the test gives it back
    monkeypatch.setenv("PYTHONPATH", "")
    cases = [(part, (Fault(way, kind, turn),)) for turn, kind in enumerate(WAYS[way])]
    check(tmp_path, corpus, cases, ENTRY)


@pytest.mark.parametrize("way", marked(WAYS))
def test_the_job_survives_each_part_over_wires_that_connect_late(
    way: str, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", "")
    monkeypatch.setenv("PYTHONPATH", "")
    check(tmp_path, corpus, in_each_part(TRIED, [way], WAYS[way]), "connecting")
