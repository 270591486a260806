"""A loop that stands still is seen, and one that waits is not taken for it."""

from __future__ import annotations

import asyncio
import time

import pytest

from heddle_operator.telemetry.loop_probe import timed_loop

AWAY_S = 0.1


async def compute():
    began_s = time.thread_time()
    while time.thread_time() < began_s + AWAY_S:
        pass


async def block():
    time.sleep(AWAY_S)  # noqa: ASYNC251 - that is the defect which the probe is for


async def wait():
    await asyncio.sleep(AWAY_S)


@pytest.mark.parametrize(
    ("work", "is_away", "computes"),
    [(compute, True, True), (block, True, False), (wait, False, False)],
)
def test_a_turn_has_its_seconds_and_those_of_the_cpu(work, is_away, computes):
    turns = []
    with asyncio.Runner(loop_factory=lambda: timed_loop(lambda *turn: turns.append(turn))) as run:
        run.run(work())
    blocked_s, cpu_s = (max(column) for column in zip(*turns, strict=True))
    assert (cpu_s >= AWAY_S) is computes
    if is_away:
        assert blocked_s >= AWAY_S
    else:
        assert sum(cpu for _, cpu in turns) < AWAY_S / 2


def test_a_turn_that_does_nothing_costs_little():
    async def turns():
        for _ in range(2000):
            await asyncio.sleep(0)

    def cpu_s(loop_factory):
        with asyncio.Runner(loop_factory=loop_factory) as run:
            began_s = time.thread_time()
            run.run(turns())
            return time.thread_time() - began_s

    plain = min(cpu_s(asyncio.SelectorEventLoop) for _ in range(3))
    timed = min(cpu_s(lambda: timed_loop(lambda *_: None)) for _ in range(3))
    assert (timed - plain) / 2000 < 20e-6
