"""Passes that are due at once have turns of the loop of their own."""

from __future__ import annotations

import asyncio

from heddle_operator.ports.turns import Turns
from heddle_operator.telemetry.loop_probe import timed_loop


def passes_by_turn(count, before):
    """How many passes each turn of a loop held that did any."""
    turns, found = [0], Turns()

    async def one():
        await before(found)
        turns[-1] += 1

    async def main():
        await asyncio.gather(*(one() for _ in range(count)))

    with asyncio.Runner(loop_factory=lambda: timed_loop(lambda *_: turns.append(0))) as runner:
        runner.run(main())
    return [number for number in turns if number]


def test_each_pass_has_a_turn_of_its_own():
    assert passes_by_turn(20, lambda turns: turns.wait()) == [1] * 20


def test_without_waiting_all_are_in_one_turn():
    assert passes_by_turn(20, lambda _: asyncio.sleep(0)) == [20]


def test_passes_come_in_the_order_in_which_they_asked():
    async def main():
        turns, order = Turns(), []

        async def one(number):
            await turns.wait()
            order.append(number)

        await asyncio.gather(*map(one, range(10)))
        return order

    assert asyncio.run(main()) == list(range(10))


def test_a_cancelled_one_holds_up_nobody():
    async def main():
        turns = Turns()
        waiting = [asyncio.create_task(turns.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.wait_for(waiting[2], 5.0)

    asyncio.run(main())
