"""A part of the campaign of faults on NCCL's wire and transport, over gloo's groups on processors.

It proves the protocol: groups formed by handles, first operations at the boundary, rounds, and the
end of a world that notices no dead peer by itself and leaves garbage in what was awaited.  It
proves nothing of NCCL.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.faults.campaign import POSSIBLE, TRIED, WAYS, check, in_each_part
from tests.distributed.faults.ways import marked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PARTS, KINDS = ("form", "try", "transfer", "flip"), ("rank", "pod")
CASES = in_each_part(PARTS, POSSIBLE, KINDS)


def test_the_sample_is_of_the_parts_of_a_change() -> None:
    assert set(PARTS) < set(TRIED)


@pytest.mark.parametrize("way", marked(WAYS))
def test_every_way_is_in_it(way: str) -> None:
    assert way in {fault.way for _, faults in CASES for fault in faults}


def test_faults_in_a_change_over_wires_that_connect_late_cost_seconds_and_no_step(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", "")  # `check` sets it, the test gives it back
    monkeypatch.setenv("PYTHONPATH", "")
    check(tmp_path, corpus, CASES, "connecting")
