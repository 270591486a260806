"""NCCL's law, asked of what all ranks have written down.

stuck     played again with one stream a communicator, which operations can never start?  One
          starts when it is the first of its communicator on each of its ranks, and when what
          its thread awaited before it is done.
disorder  which two ranks have issued what they share in different orders?  Kernels of two
          communicators may then wait for each other on two GPUs for ever.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, NamedTuple


class Row(NamedTuple):
    """What a rank did, in the order in which it did it.

    Attributes:
        kind: issue or wait; garbage, where a wire was ended and brought that.
        number: of the operation, counted on its rank.
        thread: that did it.
        comm: name of the communicator.
        what: all_reduce, broadcast, send or recv.
        peer: of a message, its rank in the communicator; -1 of a collective.
        me: this rank in the communicator.
        size: of the communicator.
        group: number of the round that a message is part of, counted on its rank; -1: of none.
    """

    kind: str
    number: int
    thread: str
    comm: str
    what: str
    peer: int
    me: int
    size: int
    group: int = -1


Members = dict[str, dict[int, int]]  # communicator: {rank in it: rank of the world}
Stream = dict[str, deque[Row]]  # of one rank, by communicator: issued and not done


def stuck(logs: list[list[list[Any]]]) -> list[str]:
    """What NCCL would never start, if every rank did what it has written down; by rank."""
    rows = [[Row(*row) for row in log] for log in logs]
    members: Members = {}
    for rank, log in enumerate(rows):
        for row in log:
            members.setdefault(row.comm, {})[row.me] = rank
    hosts = [  # what each thread of each rank has still to do
        (rank, deque(row for row in log if row.thread == thread))
        for rank, log in enumerate(rows)
        for thread in dict.fromkeys(row.thread for row in log)
    ]
    streams: list[Stream] = [{} for _ in logs]
    moved = True
    while moved:
        issued = [_issue(log, streams[rank]) for rank, log in hosts]
        moved = any(issued) | _run(members, streams)
    return [
        f"rank {rank}: {queue[0].what} {queue[0].peer} on {comm}"
        for rank, stream in enumerate(streams)
        for comm, queue in stream.items()
        if queue
    ]


def _issue(log: deque[Row], stream: Stream) -> bool:
    """A thread goes on until it awaits what is not done; whether it did."""
    before = len(log)
    while log and not _is_awaited(log[0], stream):
        if (row := log.popleft()).kind == "issue":
            stream.setdefault(row.comm, deque()).append(row)
    return len(log) < before


def _run(members: Members, streams: list[Stream]) -> bool:
    """Do what can start now; whether anything did."""
    moved = False
    for stream in streams:
        for comm, queue in stream.items():
            while done := _first_done(queue, members[comm], streams):
                for rank, row in done:
                    streams[rank][comm].remove(row)
                moved = True
    return moved


def _is_awaited(row: Row, stream: Stream) -> bool:
    return row.kind == "wait" and any(r.number == row.number for r in stream.get(row.comm, ()))


def _head(queue: deque[Row]) -> list[Row]:
    """What may be under way at once: the first, and all of its round."""
    if not queue:
        return []
    return [row for row in queue if row is queue[0] or -1 < row.group == queue[0].group]


def _first_done(
    queue: deque[Row], members: dict[int, int], streams: list[Stream]
) -> list[tuple[int, Row]]:
    """(rank of the world, row) of the first operation that can run now; none if none can."""
    for row in _head(queue):
        if ends := _ends(row, members, streams):
            return ends
    return []


def _ends(row: Row, members: dict[int, int], streams: list[Stream]) -> list[tuple[int, Row]]:
    """The rows of this operation on all its ranks; none if it cannot start yet."""
    wanted = dict.fromkeys(range(row.size), (row.what, -1))
    if row.peer >= 0:
        other = {"send": "recv", "recv": "send"}[row.what]
        wanted = {row.me: (row.what, row.peer), row.peer: (other, row.me)}
    found = []
    for number, operation in wanted.items():
        queue = streams[members[number]].get(row.comm) if number in members else None
        meets = (r for r in _head(queue or deque()) if (r.what, r.peer) == operation)
        if (first := next(meets, None)) is None:
            return []
        found.append((members[number], first))
    return found


def disorder(logs: list[list[list[Any]]]) -> list[str]:
    """Two ranks that have issued their common collectives in different orders; the first each."""
    found = []
    rows = [[row for row in (Row(*r) for r in log) if row.kind == "issue"] for log in logs]
    for (one, mine), (other, theirs) in itertools.combinations(enumerate(rows), 2):
        common = {row.comm for row in mine} & {row.comm for row in theirs}
        orders = (
            [(row.comm, row.what) for row in log if row.comm in common and row.peer < 0]
            for log in (mine, theirs)
        )
        for index, (a, b) in enumerate(itertools.zip_longest(*orders)):
            if a != b:
                found.append(f"ranks {one} and {other}, operation {index}: {a} and {b}")
                break
    return found
