"""A set that remembers only the newest of what was put in: what was said, sent or counted.

Invariant: never more than `limit` members, however long the operator runs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

KEPT = 1024  # what is older may be said again, which does no harm

T = TypeVar("T", bound=Hashable)


class Recent(Generic[T]):
    """The newest members, by when they were last added."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._members: dict[T, None] = {}

    def __len__(self) -> int:
        """How many it remembers."""
        return len(self._members)

    def __contains__(self, member: object) -> bool:
        """Whether it is remembered."""
        return member in self._members

    def add(self, member: T) -> bool:
        """Remember it; False if it was remembered already."""
        is_new = member not in self._members
        self._members.pop(member, None)
        self._members[member] = None
        if len(self._members) > self._limit:
            del self._members[next(iter(self._members))]
        return is_new
