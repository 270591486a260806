"""Whose search is next, where a few planner processes serve all jobs of an operator.

Invariant: a job has at most one search in flight, and its second waits behind the first of every
other job that waits; nobody waits for ever.
Source: Goyal, Vin and Cheng, "Start-time fair queueing" (1996), each search counted as one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Asked:
    """A search that waits.

    Attributes:
        start: number of the round in which it is due; the lowest is next.
        arrival: among those of a round, the first come is first served.
    """

    job: str
    slots: int
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
        self._round = 0  # of the last search that began
        self._next: dict[str, int] = {}  # round of a job's next search, where it is to come
        self._waiting: list[_Asked] = []
        self._searching: set[str] = set()
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def turn(self, job: str, slots: int = 1) -> AsyncIterator[None]:
        """Wait for a turn, and have it.

        Args:
            job: uid of the one that asks.
            slots: that it takes; all of them: nothing else is searched meanwhile.
        """
        self._next = {job: due for job, due in self._next.items() if due > self._round}
        start = self._next.get(job, self._round)
        self._next[job] = start + 1
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked = _Asked(job, slots, start, next(self._arrivals), granted)
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
            first = min(able, key=lambda asked: (asked.start, asked.arrival), default=None)
            if first is None or first.slots > self._free:
                return
            self._waiting.remove(first)
            self._free -= first.slots
            self._searching.add(first.job)
            self._round = max(self._round, first.start)
            if not first.granted.done():
                first.granted.set_result(None)
