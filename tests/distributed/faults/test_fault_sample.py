"""A sample of the faults of `make test-kills`, and of a pair of them, in every run of the tests."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.distributed.faults.campaign import (
    PARTS,
    POSSIBLE,
    WAYS,
    Fault,
    check,
    lacking,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = 25


def sample(seed: int) -> list[tuple[str, tuple[Fault, ...]]]:
    """One fault of each way, and one pair: whoever it takes, one copy of the state is left."""
    choose = random.Random(seed)
    kinds = ("rank", "agent", "store", "pod")
    cases = [
        (choose.choice(PARTS), (Fault(way, choose.choice(WAYS[way]), choose.randrange(3)),))
        for way in POSSIBLE
    ]
    pair = (Fault("kill", choose.choice(kinds[:2]), choose.randrange(3)), Fault("stop", "store", 0))
    return [*cases, (choose.choice(PARTS), pair)]


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_in_the_sample(way: str) -> None:
    if lacking(way):
        pytest.skip(f"faults of the way {way!r} are left out: {lacking(way)}")
    assert any(fault.way == way for _, faults in sample(SEED) for fault in faults)


def test_a_sample_of_faults_costs_seconds_and_no_step(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", "")  # `check` sets it, the test gives it back
    monkeypatch.setenv("PYTHONPATH", "")
    check(tmp_path, corpus, sample(SEED))
