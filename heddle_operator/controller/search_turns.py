"""Whose search is next, where a few planner processes serve all jobs of an operator.

Invariant: a job has at most one search in flight.  An urgent search waits behind no other one; of
equally urgent ones the second of a job waits behind the first of every other job that waits.  So
nobody waits for ever, as jobs lose nodes and start seldom.
Source: Goyal, Vin and Cheng, "Start-time fair queueing" (1996), each search counted as one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True, kw_only=True)
class _Asked:
    """A search that waits.

    Attributes:
        rank: how urgent it is; the lowest is next.
        start: number of the round in which it is due; the lowest of a rank is next.
        arrival: among those of a round, the first come is first served.
    """

    job: str
    slots: int
    rank: int
    start: int
    arrival: int
    granted: asyncio.Future[None]


class SearchTurns:
    """Hands out slots.

    Args:
        slots: that there are.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free = slots
        self._rounds = Counter[int]()  # by rank, of the last search that began
        # Round of a job's next search of a rank, where it is to come.
        self._next: dict[tuple[int, str], int] = {}
        self._waiting: list[_Asked] = []
        self._searching: set[str] = set()
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def turn(self, job: str, slots: int = 1, rank: int = 0) -> AsyncIterator[None]:
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
        asked = _Asked(
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
            yield
        finally:
            if asked in self._waiting:
                self._waiting.remove(asked)
            else:
                self._free += slots
                self._searching.discard(job)
            self._grant()

    def _grant(self) -> None:
        """Let those begin who are next; one that needs more than is free holds up who follows."""
        while True:
            able = [asked for asked in self._waiting if asked.job not in self._searching]
            first = min(able, key=_order, default=None)
            if first is None or first.slots > self._free:
                return
            self._waiting.remove(first)
            self._free -= first.slots
            self._searching.add(first.job)
            self._rounds[first.rank] = max(self._rounds[first.rank], first.start)
            if not first.granted.done():
                first.granted.set_result(None)


def _order(asked: _Asked) -> tuple[int, int, int]:
    return asked.rank, asked.start, asked.arrival
