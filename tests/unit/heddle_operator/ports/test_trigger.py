"""A change wakes the loop once, and no change is lost between two waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from heddle_operator.ports.trigger import Trigger


def test_changes_before_the_wait_are_not_lost_and_count_once():
    async def main():
        trigger = Trigger()
        trigger.set()
        trigger.set()
        return await trigger.wait(None), await trigger.wait(0.0)

    assert asyncio.run(main()) == (True, False)


def test_a_wait_that_a_change_ended_has_the_time_of_the_first_one():
    async def main():
        trigger = Trigger()
        before_s = time.monotonic()
        trigger.set()
        after_s = time.monotonic()
        while time.monotonic() == after_s:
            pass
        trigger.set()
        await trigger.wait(None)
        assert before_s <= trigger.since_s <= after_s
        await trigger.wait(0.0)
        assert trigger.since_s is None

    asyncio.run(main())


def test_a_change_ends_a_wait():
    async def main():
        trigger = Trigger()
        waiting = asyncio.create_task(trigger.wait(10.0))
        await asyncio.sleep(0)
        trigger.set()
        return await waiting

    assert asyncio.run(main())


@pytest.mark.parametrize("passes", range(5))
def test_a_cancellation_in_the_moment_of_a_wake_is_not_lost(passes):
    async def main():
        trigger = Trigger()
        waiting = asyncio.create_task(trigger.wait(30.0))
        await asyncio.sleep(0)
        trigger.set()
        for _ in range(passes):
            await asyncio.sleep(0)
        is_taken = waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled() == is_taken

    asyncio.run(main())


def test_changes_that_can_wait_are_one_change():
    async def main():
        trigger = Trigger()
        clock = asyncio.get_running_loop().time
        began_s = clock()
        for _ in range(3):
            trigger.set_soon(0.01, 0.05)
        assert await trigger.wait(None)
        first_s = clock()
        assert not await trigger.wait(0.0)
        trigger.set_soon(0.01, 0.05)
        assert await trigger.wait(None)
        return first_s - began_s, clock() - began_s

    first_s, second_s = asyncio.run(main())
    assert first_s >= 0.01 * 0.9
    assert second_s >= (0.01 + 0.05) * 0.9  # however late the first one was heard


def test_a_change_that_waited_has_the_time_at_which_it_came():
    async def main():
        trigger = Trigger()
        before_s = time.monotonic()
        trigger.set_soon(0.02, 0.0)
        after_s = time.monotonic()
        await trigger.wait(None)
        assert before_s <= trigger.since_s <= after_s

    asyncio.run(main())
