"""In which order the tuples travel: rounds of messages, the same on every rank.

Tuples of one (sender, receiver) pair are coalesced into messages of at most 16 MB; messages are
dealt out to rounds in which no rank has more than 32 point-to-point operations, because NCCL hangs
on hundreds in one group.
Invariant: what `faults` checks.  All pairs run side by side; the paper's serial inter-pipeline
stage took 1.8 times the optimum in the median of a simulation, this order 1.0 times.
Source: Heddle, section 5.6 (schedule); the limit of 32 is sglang's, for pytorch#174288.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from migration.tuples import CHUNK_BYTES, MigrationTuple

MAX_OPERATIONS = 32  # of one rank in one round


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank sends another in one round: the bytes of its tuples, one after the other."""

    sender: int
    receiver: int
    tuples: tuple[MigrationTuple, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of state in it."""
        return sum(move.num_bytes for move in self.tuples)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds of messages; the k-th of a pair in a round is its k-th send and k-th receive there."""

    rounds: tuple[tuple[Message, ...], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of state that travel."""
        return sum(message.num_bytes for message in chain.from_iterable(self.rounds))


def arrange(
    tuples: Sequence[MigrationTuple],
    chunk_bytes: int = CHUNK_BYTES,
    max_operations: int = MAX_OPERATIONS,
) -> Schedule:
    """Coalesce the tuples into messages and deal these out to rounds.

    Args:
        tuples: each at most `chunk_bytes`, as `difference` cuts them.
        chunk_bytes: the largest message.
        max_operations: sends and receives of one rank in one round.
    """
    rounds: list[list[Message]] = []
    operations: list[Counter[int]] = []
    first_free: Counter[int] = Counter()  # {rank: its first round with room}; no need to ask before
    for message in _messages(tuples, chunk_bytes):
        ends = (message.sender, message.receiver)
        index = max(first_free[message.sender], first_free[message.receiver])
        while index < len(rounds) and any(operations[index][end] >= max_operations for end in ends):
            index += 1
        if index == len(rounds):
            rounds.append([])
            operations.append(Counter())
        rounds[index].append(message)
        operations[index].update(ends)
        for end in ends:
            while first_free[end] < len(rounds) and (
                operations[first_free[end]][end] >= max_operations
            ):
                first_free[end] += 1
    return Schedule(tuple(tuple(messages) for messages in rounds))


def schedule_digest(schedule: Schedule) -> int:
    """63 bits that name the schedule; ranks compare them before the first byte."""
    text = repr(
        [
            [tuple(map(tuple, message.tuples)) for message in messages]
            for messages in schedule.rounds
        ]
    )
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def faults(
    schedule: Schedule,
    tuples: Sequence[MigrationTuple],
    chunk_bytes: int = CHUNK_BYTES,
    max_operations: int = MAX_OPERATIONS,
) -> tuple[str, ...]:
    """Every way in which the schedule does not carry exactly these tuples; empty for a good one."""
    found: list[str] = []
    for index, messages in enumerate(schedule.rounds):
        operations = Counter(chain.from_iterable((m.sender, m.receiver) for m in messages))
        found += [
            f"round {index} gives rank {rank} {count} operations, {max_operations} are allowed"
            for rank, count in sorted(operations.items())
            if count > max_operations
        ]
        for message in messages:
            where = f"round {index}, message {message.sender} -> {message.receiver}"
            if message.sender == message.receiver:
                found.append(f"{where} goes to its own sender")
            if not 0 < message.num_bytes <= chunk_bytes:
                found.append(
                    f"{where} has {message.num_bytes} bytes, 1 to {chunk_bytes} are allowed"
                )
            if any(
                (m.sender, m.receiver) != (message.sender, message.receiver) for m in message.tuples
            ):
                found.append(f"{where} carries a tuple of another pair")
    carried = Counter(
        move for message in chain.from_iterable(schedule.rounds) for move in message.tuples
    )
    asked = Counter(tuples)
    found += [f"{move} is not carried" for move in sorted(asked - carried)]
    found += [f"{move} is carried but was not asked for" for move in sorted(carried - asked)]
    return tuple(found)


def _messages(tuples: Sequence[MigrationTuple], chunk_bytes: int) -> list[Message]:
    """All messages: the first of every pair, then the second of every pair, and so on.

    Within a turn the pairs are ordered by their distance, so that neighbours in the list share no
    port.
    """
    pairs: dict[tuple[int, int], list[list[MigrationTuple]]] = {}
    in_last: Counter[tuple[int, int]] = Counter()  # bytes in a pair's last message
    for move in tuples:
        pair = (move.sender, move.receiver)
        messages = pairs.setdefault(pair, [[]])
        if messages[-1] and in_last[pair] + move.num_bytes > chunk_bytes:
            messages.append([])
            in_last[pair] = 0
        messages[-1].append(move)
        in_last[pair] += move.num_bytes
    size = 1 + max((end for pair in pairs for end in pair), default=0)
    order = sorted(
        (turn, (receiver - sender) % size, sender, receiver)
        for (sender, receiver), messages in pairs.items()
        for turn in range(len(messages))
    )
    return [
        Message(sender, receiver, tuple(pairs[sender, receiver][turn]))
        for turn, _, sender, receiver in order
    ]
