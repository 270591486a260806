"""A part of the campaign of faults on NCCL's wire and transport, over gloo's groups on processors.

It proves the protocol: groups formed by handles, first operations at the boundary, rounds, and the
end of a world that notices no dead peer by itself.  It proves nothing of NCCL.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.distributed.faults.campaign import PARTS, Fault, fail_in, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TRIED = (*PARTS[:3], "try", *PARTS[4:])  # drain is the try's own boundary
KINDS = ("rank", "store", "pod")
WAYS = ("kill", "stop")


def cases(parts: tuple[str, ...]) -> list[tuple[str, Fault]]:
    """A fault in each part, killed and stopped in turn; so have a rank, a store and a pod."""
    return [
        (part, Fault(WAYS[n % len(WAYS)], KINDS[n % len(KINDS)], n)) for n, part in enumerate(parts)
    ]


def test_faults_in_a_change_over_wires_that_connect_late_cost_seconds_and_no_step(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", str(tmp_path / "gates"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))

    async def campaign() -> dict[int, str | None]:
        async with running(tmp_path, corpus, "connecting") as run:
            await run.steady()
            for part, fault in cases(TRIED):
                await fail_in(run, part, fault)
                await run.steady()
            return {step: record.wire for step, record in run.steps.items()}

    wires = asyncio.run(campaign())
    assert sorted(wires) == list(range(len(wires))), "every step was trained and reported"
    assert set(wires.values()) == {"nccl over gloo"}
