"""Whose search is next, where a few planner processes serve all jobs of an operator.

Invariant: a job has at most one search in flight.  An urgent search waits behind no other one, and
hurries those that are less urgent and in its way; of equally urgent ones the second of a job waits
behind the first of every other job that waits.  So nobody waits for ever, as jobs lose nodes and
start seldom.
Source: Goyal, Vin and Cheng, "Start-time fair queueing" (1996), each search counted as one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True, kw_only=True)
class Turn:
    """A search that waits, or has its turn.

    Attributes:
        rank: how urgent it is; the lowest is next.
        start: number of the round in which it is due; the lowest of a rank is next.
        arrival: among those of a round, the first come is first served.
        is_hurried: a more urgent one waits for its end.
        hurry: tells it so, once there is somebody to tell.
    """

    job: str
    slots: int
    rank: int
    start: int
    arrival: int
    granted: asyncio.Future[None]
    is_hurried: bool = False
    hurry: Callable[[], None] | None = None

    def on_hurry(self, hurry: Callable[[], None]) -> None:
        """Call this where a more urgent search waits: now, or as soon as one does."""
        self.hurry = hurry
        if self.is_hurried:
            hurry()

    def give_way(self) -> None:
        """End early; said once."""
        if not self.is_hurried:
            self.is_hurried = True
            if self.hurry is not None:
                self.hurry()


class SearchTurns:
    """Hands out slots.

    Args:
        slots: that there are.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._rounds = Counter[int]()  # by rank, of the last search that began
        # Round of a job's next search of a rank, where it is to come.
        self._next: dict[tuple[int, str], int] = {}
        self._waiting: list[Turn] = []
        self._searching: dict[str, Turn] = {}  # by job
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def turn(self, job: str, slots: int = 1, rank: int = 0) -> AsyncIterator[Turn]:
        """Wait for a turn, and have it.

        Args:
            job: uid of the one that asks.
            slots: that it takes; all of them: nothing else is searched meanwhile.
            rank: how urgent it is; 0 goes first.
        """
        rounds, key = self._rounds, (rank, job)
        self._next = {each: due for each, due in self._next.items() if due > rounds[each[0]]}
        start = self._next.get(key, rounds[rank])
        self._next[key] = start + 1
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked = Turn(
            job=job,
            slots=slots,
            rank=rank,
            start=start,
            arrival=next(self._arrivals),
            granted=granted,
        )
        self._waiting.append(asked)
        self._grant()
        try:
            await granted
            yield asked
        finally:
            if asked in self._waiting:
                self._waiting.remove(asked)
            else:
                self._free += slots
                del self._searching[job]
            self._grant()

    def _grant(self) -> None:
        """Let those begin who are next; one that needs more than is free holds up who follows."""
        while True:
            self._hurry_own()
            able = [asked for asked in self._waiting if asked.job not in self._searching]
            first = min(able, key=_order, default=None)
            if first is None:
                return
            if first.slots > self._free:
                self._hurry_others(first)
                return
            self._waiting.remove(first)
            self._free -= first.slots
            self._searching[first.job] = first
            self._rounds[first.rank] = max(self._rounds[first.rank], first.start)
            if not first.granted.done():
                first.granted.set_result(None)

    def _hurry_own(self) -> None:
        """A job's own search holds up its more urgent one."""
        for asked in self._waiting:
            own = self._searching.get(asked.job)
            if own is not None and own.rank > asked.rank:
                own.give_way()

    def _hurry_others(self, first: Turn) -> None:
        """As many searches of others as it needs, the least urgent and the latest of them."""
        others = [turn for turn in self._searching.values() if turn.rank > first.rank]
        others.sort(key=_order, reverse=True)
        for turn in others[: first.slots - self._free]:
            turn.give_way()


def _order(asked: Turn) -> tuple[int, int, int]:
    return asked.rank, asked.start, asked.arrival
