"""Searches of all jobs take turns, one of each job at a time."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.controller.search_turns import SearchTurns


class Searches:
    """Searches that last until they are told to end, and the order in which they began."""

    def __init__(self, slots):
        self.turns = SearchTurns(slots)
        self.began, self.ends, self.tasks = [], {}, {}
        self.hurried = []
        self.speaks = asyncio.Event()  # until then a search cannot be told to end early
        self.speaks.set()

    async def ask(self, *names, slots=1, rank=0):
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._search(name, slots, rank))
        await self.settle()

    async def _search(self, name, slots, rank):
        async with self.turns.turn(name[0], slots, rank) as turn:
            self.began.append(name)
            await self.speaks.wait()
            turn.on_hurry(lambda: self.hurried.append(name))
            await self.ends[name].wait()

    async def settle(self):
        for _ in range(10):
            await asyncio.sleep(0)

    async def end(self, name):
        self.ends[name].set()
        await self.tasks[name]
        await self.settle()

    async def cancel(self, name):
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)
        await self.settle()


def run(test, slots):
    asyncio.run(test(Searches(slots)))


def test_a_job_has_one_search_in_flight():
    async def test(searches):
        await searches.ask("a1", "a2", "b1")
        assert searches.began == ["a1", "b1"]
        await searches.end("a1")
        assert searches.began == ["a1", "b1", "a2"]

    run(test, 3)


def test_a_second_search_of_a_job_waits_behind_the_first_of_all_others():
    async def test(searches):
        await searches.ask("a1", "a2", "a3", "b1", "c1", "b2")
        for name in ("a1", "b1", "c1", "a2", "b2", "a3"):
            assert searches.began[-1] == name
            await searches.end(name)

    run(test, 1)


def test_a_job_that_asks_anew_after_each_answer_does_not_overtake_one_that_waits():
    async def test(searches):
        await searches.ask("a1", "a2", "b1")
        await searches.end("a1")
        await searches.end("b1")
        assert searches.began == ["a1", "b1", "a2"]
        await searches.ask("b2", "a3", "c1")
        for name in ("a2", "b2", "c1", "a3"):
            assert searches.began[-1] == name
            await searches.end(name)

    run(test, 1)


def test_a_search_that_takes_all_slots_has_them_alone_and_is_not_overtaken_for_ever():
    async def test(searches):
        await searches.ask("a1", "b1")
        await searches.ask("c1", slots=2)
        await searches.ask("d1")
        await searches.end("a1")
        assert searches.began == ["a1", "b1"]
        await searches.end("b1")
        assert searches.began[2:] == ["c1"]
        await searches.end("c1")
        assert searches.began[3:] == ["d1"]

    run(test, 2)


@pytest.mark.parametrize("cancelled", ["a1", "b1"])
def test_a_search_that_is_given_up_leaves_its_turn_to_the_next(cancelled):
    async def test(searches):
        await searches.ask("a1", "b1", "c1")
        await searches.cancel(cancelled)
        last = "b1" if cancelled == "a1" else "a1"
        await searches.end(last)
        await searches.end("c1")
        assert searches.turns._free == 1
        assert searches.turns._searching == {}

    run(test, 1)


def test_what_is_remembered_of_jobs_does_not_grow():
    async def test(searches):
        for number in range(100):
            async with searches.turns.turn(str(number)):
                pass
        assert len(searches.turns._next) <= 101
        for _ in range(100):
            async with searches.turns.turn("same"):
                pass
        assert len(searches.turns._next) == 1

    run(test, 1)


def test_an_urgent_search_waits_behind_no_other_and_its_equals_take_turns():
    async def test(searches):
        await searches.ask("a1", "b1", "c1", "d1", rank=2)
        await searches.ask("b2", "e1", rank=1)
        await searches.ask("d2", "d3", "f1")
        for name in ("a1", "d2", "f1", "d3", "b2", "e1", "b1", "c1", "d1"):
            assert searches.began[-1] == name
            await searches.end(name)

    run(test, 1)


def test_a_job_that_is_urgent_pays_with_no_turn_of_its_others():
    async def test(searches):
        await searches.ask("a1", "a2", "b1", rank=2)
        await searches.ask("a3", "b2")
        await searches.end("a1")
        for name in ("a3", "b2", "b1", "a2"):
            assert searches.began[-1] == name
            await searches.end(name)

    run(test, 1)


def test_an_urgent_search_hurries_the_least_urgent_one_in_its_way_once():
    async def test(searches):
        await searches.ask("a1", rank=1)
        await searches.ask("b1", "c1", rank=2)
        await searches.ask("d1", rank=2)
        assert searches.hurried == []
        await searches.ask("e1", rank=1)
        await searches.ask("f1", rank=1)
        assert searches.hurried == ["c1"]
        await searches.end("c1")
        await searches.end("b1")
        assert searches.began == ["a1", "b1", "c1", "e1", "f1"]
        await searches.ask("g1")
        assert searches.hurried == ["c1", "b1", "f1"]

    run(test, 3)


def test_a_search_hurries_the_less_urgent_one_of_its_own_job_where_slots_are_free():
    async def test(searches):
        await searches.ask("a1", rank=2)
        await searches.ask("a2", "b1", rank=2)
        assert searches.hurried == []
        await searches.ask("a3")
        assert searches.hurried == ["a1"]
        await searches.end("a1")
        assert searches.began == ["a1", "b1", "a3"]

    run(test, 3)


def test_a_search_that_is_hurried_before_it_can_be_told_is_told_later():
    async def test(searches):
        searches.speaks.clear()
        await searches.ask("a1", rank=2)
        await searches.ask("b1")
        assert searches.hurried == []
        searches.speaks.set()
        await searches.settle()
        assert searches.hurried == ["a1"]

    run(test, 1)
