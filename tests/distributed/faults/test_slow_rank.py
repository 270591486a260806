"""Who is slow, and says that it lives, is waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from planner.cluster.composition import Node
from tests.distributed.faults.campaign import Run, running
from tests.distributed.faults.rank_entries import SLOW_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_who_is_slow_is_waited_for(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build, a transfer and a step that take longer than the peer time-out lose nobody."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
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
