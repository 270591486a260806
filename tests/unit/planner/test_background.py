"""planner/background.py: a task that nobody awaits is not lost, nor is its failure."""

from __future__ import annotations

import asyncio
import gc

import pytest

from planner.background import Background


async def fails():
    raise ValueError("no")


def test_what_fails_is_said_at_once_and_what_is_given_up_is_not(caplog):
    async def play():
        background = Background()
        failing = background.start(fails(), "a post")
        background.start(asyncio.Event().wait(), "a wait")
        await asyncio.wait({failing})
        said = [(record.getMessage(), record.exc_info[0]) for record in caplog.records]
        await background.close()
        return said, len(caplog.records)

    assert asyncio.run(play()) == ([("a post failed", ValueError)], 1)


def test_a_task_is_kept_until_it_ends():
    """The loop keeps a weak reference; a wait for what nobody else knows would be collected."""

    async def play():
        background, ended = Background(), []

        async def waits():
            await asyncio.get_running_loop().create_future()

        background.start(waits(), "a wait").add_done_callback(ended.append)
        await asyncio.sleep(0)
        gc.collect()
        await background.finish(0.01)
        assert ended == []
        await background.close()
        return len(ended)

    assert asyncio.run(play()) == 1


@pytest.mark.parametrize("limit_s", [None, 0.0])
def test_where_nothing_is_under_way_nothing_is_waited_for(limit_s):
    asyncio.run(Background().finish(limit_s))
