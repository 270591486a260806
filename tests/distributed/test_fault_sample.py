"""A sample of the faults of `make test-kills`, and of a pair of them, in every run of the tests."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from planner.cluster.composition import Node
from tests.distributed.campaign import (
    PARTS,
    POSSIBLE,
    WAYS,
    Fault,
    Run,
    check,
    lacking,
    running,
)
from tests.distributed.faults import SLOW_S

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


def test_who_is_slow_is_waited_for(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build, a transfer and a step that take longer than the peer time-out lose nobody."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    run = asyncio.run(join_slowly(tmp_path, corpus))
    assert run.reasons == ["start", "join"], "no epoch but these two, and both live"
    longest_s = max(step.end_s - step.start_s for step in run.steps.values())
    assert longest_s > SLOW_S, "a step was slow indeed"


async def join_slowly(folder: Path, data: Path) -> Run:
    async with running(folder, data, "slow") as run:
        await run.steady()
        run.cluster.join(Node(name="z", gpu_type="demo-fast", gpus=2))
        observed = await run.steady()
        run.reasons = [record.reason for record in observed.epochs]
        return run
