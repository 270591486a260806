"""Rounds of messages, numbered alike on every rank, for carriers that start them together.

NCCL does what a rank issues strictly in that order, and two ranks that both send first may wait for
each other for ever.  So messages travel in rounds: a rank issues all its sends and receives of a
round as one group, awaits it, and goes on to its next round.
Invariant: both ends of a message are in one round, and a rank's rounds only grow.  The lowest round
that is not complete is then always issued by all its ranks, so nobody waits for ever.
Source: NCCL's user guide, "Point-to-point communication"; that hundreds of operations in one group
hang is pytorch#174288.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Link(NamedTuple):
    """One message as far as its round depends on it.

    Attributes:
        sender, receiver: ranks.
        after: key of the message that brings its content to the sender; None: it is there.
    """

    sender: int
    receiver: int
    after: Hashable | None = None


def numbered(links: Iterable[tuple[Key, Link]], most: int) -> dict[Key, int]:
    """{key: the round of that message}; each takes the first round that both its ends have free.

    Args:
        links: messages in the order that all ranks share; one comes behind its `after`.
        most: operations of a rank in a round, sends and receives together.
    """
    found: dict[Key, int] = {}
    rounds: dict[Hashable, int] = {}
    open_: dict[int, tuple[int, int]] = {}  # the newest round of each rank, its operations there
    for key, link in links:
        ends = [open_.get(rank, (0, 0)) for rank in (link.sender, link.receiver)]
        number = max(round_ + (count == most) for round_, count in ends)
        if link.after is not None:
            number = max(number, rounds[link.after] + 1)
        for rank, (round_, count) in zip((link.sender, link.receiver), ends, strict=True):
            open_[rank] = (number, count + 1 if round_ == number else 1)
        found[key] = rounds[key] = number
    return found
