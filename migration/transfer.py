"""The plan of a transfer: from the classes of a change to each rank's messages, in one order.

Runs of one sender, receiver and relays are a flow, and a flow is cut into messages of about 16 MB.
All messages of all ranks have one order: a flow of k messages sends its i-th at (i + 1/2) / k of
the whole, so that all flows go on side by side and end together, as in the optimum of the linear
programme; a message that is handed on follows some time after it has come.
Invariant: every rank posts its sends and receives in that order, has a bounded number under way and
completes the first before it posts another.  The first message of the order that is not complete is
then always posted by both its ends, so no rank waits for ever: there is no deadlock and no barrier.
Source: Heddle, section 5.6 (schedule); the limit of 32 operations is sglang's, because hundreds
in one group of NCCL hang (pytorch#174288).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

from migration.balance import Run, share_out
from migration.classes import MovingClass, moving_classes
from migration.layout import StateLayout
from migration.links import Links, node_indices, usual_links
from migration.rounds import Link, numbered
from migration.slices import Line, Slice, line_of
from planner.plans.regions import Cuts, Regions

MESSAGE_BYTES = 16_000_000  # gloo's and NCCL's rates are flat from 1 to 16 MB
GRAIN_BYTES = 1_000_000  # less is not worth a second sender
MAX_OPERATIONS = 32  # of one rank under way
HEADER_BYTES = 40  # of a message; see `migration.exchange`
_WHOLE = 1 << 32  # the time of all messages, in the order's units


class Flow(NamedTuple):
    """All that goes from one rank to another and, if it does, on to others of its node."""

    sender: int
    receiver: int
    relays: tuple[int, ...]
    runs: tuple[Run, ...]
    num_bytes: int
    messages: int


class Turn(NamedTuple):
    """The place of a message in the order of all; compared as a tuple.

    Attributes:
        time: in `_WHOLE` of the whole.
        hop: 0 from a holder, 1 handed on.
        flow: its index.
        number: of the message in its flow.
        receiver: transport rank.
    """

    time: int
    hop: int
    flow: int
    number: int
    receiver: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message from one rank to another.

    Attributes:
        sender, receiver: transport ranks.
        sequence: its number among the messages of this pair.
        slices: one after the other.
        num_bytes: of all slices.
        after: turn of the message that brought these slices to the sender; None: it holds them.
        turn: its place in the order of all messages.
    """

    sender: int
    receiver: int
    sequence: int
    slices: tuple[Slice, ...]
    num_bytes: int
    after: Turn | None
    turn: Turn


@dataclass(frozen=True, eq=False, kw_only=True)
class Transfer:
    """All that a change moves; every rank works out the same.

    Attributes:
        regions: of the state.
        classes: that move.
        runs: who sends which bytes of each class to whom.
        nodes: index of the node of each transport rank.
        links: bytes per second, as far as they decided.
        message_bytes: about the size of a message.
    """

    regions: Regions
    classes: tuple[MovingClass, ...]
    runs: tuple[Run, ...]
    nodes: tuple[int, ...]
    links: Links
    message_bytes: int = MESSAGE_BYTES

    @cached_property
    def digest(self) -> int:
        """63 bits that name the plan; ranks compare them before the first byte."""
        hasher = hashlib.blake2b(digest_size=8)
        hasher.update(repr((self.classes, self.runs, self.nodes, self.message_bytes)).encode())
        hasher.update(repr((self.regions.model, _degrees(self.regions.cuts))).encode())
        return int.from_bytes(hasher.digest(), "big") >> 1

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """All flows, by their first run."""
        found: dict[tuple[int, int, tuple[int, ...]], list[Run]] = {}
        for run in self.runs:
            found.setdefault((run.sender, run.receiver, run.relays), []).append(run)
        sizes = [sum(run.stop - run.start for run in runs) for runs in found.values()]
        return tuple(
            Flow(*key, tuple(runs), size, -(-size // self.message_bytes))
            for (key, runs), size in zip(found.items(), sizes, strict=True)
        )

    @cached_property
    def operations(self) -> Counter[int]:
        """Sends and receives of each transport rank."""
        found: Counter[int] = Counter()
        for flow in self.flows:
            found[flow.sender] += flow.messages
            found[flow.receiver] += flow.messages * (1 + len(flow.relays))
            for rank in flow.relays:
                found[rank] += flow.messages
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of state that arrive, over all ranks."""
        return sum(flow.num_bytes * (1 + len(flow.relays)) for flow in self.flows)

    def turns(self, flow: int) -> list[tuple[Turn, int, Turn | None]]:
        """(turn, sender, turn of the message before) of all messages of a flow, relays too."""
        one = self.flows[flow]
        found: list[tuple[Turn, int, Turn | None]] = []
        lag = MAX_OPERATIONS * _WHOLE // max(MAX_OPERATIONS, self.operations[one.receiver])
        for number in range(one.messages):
            time = (2 * number + 1) * _WHOLE // (2 * one.messages)
            first = Turn(time, 0, flow, number, one.receiver)
            found.append((first, one.sender, None))
            found += [
                (Turn(time + lag, 1, flow, number, rank), one.receiver, first)
                for rank in one.relays
            ]
        return found

    def messages(self, rank: int) -> tuple[Message, ...]:
        """All messages that a rank sends or receives, in their order; worked out once."""
        if rank not in self._messages:
            self._messages[rank] = self._messages_of(rank)
        return self._messages[rank]

    def rounds(self, rank: int) -> tuple[tuple[Message, ...], ...]:
        """Likewise, by round: one message is one operation of each of its ends."""
        number = self._round_of
        grouped = groupby(self.messages(rank), key=lambda message: number[message.turn])
        return tuple(tuple(messages) for _, messages in grouped)

    @cached_property
    def _round_of(self) -> dict[Turn, int]:
        """The round of every message of all ranks."""
        rows = sorted(row for flow in range(len(self.flows)) for row in self.turns(flow))
        links = ((turn, Link(sender, turn.receiver, after)) for turn, sender, after in rows)
        return numbered(links, MAX_OPERATIONS)

    @cached_property
    def _messages(self) -> dict[int, tuple[Message, ...]]:
        return {}

    def buffer_bytes(self, rank: int) -> int:
        """The most bytes of messages that a rank has under way at once.

        Each has an operation at least, so there are never more of them than may be under way.
        """
        sizes = [message.num_bytes + HEADER_BYTES for message in self.messages(rank)]
        ends = [0, *accumulate(sizes)]
        last = len(sizes)
        return max(
            ends[min(first + MAX_OPERATIONS, last)] - ends[first] for first in range(max(1, last))
        )

    def _messages_of(self, rank: int) -> tuple[Message, ...]:
        mine: list[tuple[Turn, int, Turn | None]] = []
        for index, flow in enumerate(self.flows):
            if rank in (flow.sender, flow.receiver, *flow.relays):
                mine += [row for row in self.turns(index) if rank in (row[1], row[0].receiver)]
        contents: dict[tuple[int, int], tuple[tuple[Slice, ...], int]] = {}
        lines: dict[int, Line] = {}
        sequence: Counter[tuple[int, int]] = Counter()
        found = []
        for turn, sender, after in sorted(mine):
            key = (turn.flow, turn.number)
            if key not in contents:
                contents[key] = self._content(*key, lines)
            slices, size = contents[key]
            if size:
                pair = (sender, turn.receiver)
                found.append(
                    Message(
                        sender=sender,
                        receiver=turn.receiver,
                        sequence=sequence[pair],
                        slices=slices,
                        num_bytes=size,
                        after=after,
                        turn=turn,
                    )
                )
                sequence[pair] += 1
        return tuple(found)

    def _content(
        self, flow: int, number: int, lines: dict[int, Line]
    ) -> tuple[tuple[Slice, ...], int]:
        """Slices and bytes of one message of a flow."""
        one = self.flows[flow]
        start, stop = (one.num_bytes * n // one.messages for n in (number, number + 1))
        slices: list[Slice] = []
        size = 0
        ends = accumulate(run.stop - run.start for run in one.runs)
        for run, end in zip(one.runs, ends, strict=True):
            shift = end - run.stop  # from the line of the class to that of the flow
            a, b = max(run.start, start - shift), min(run.stop, stop - shift)
            if a < b:
                if run.moving not in lines:
                    lines[run.moving] = line_of(self.regions, self.classes[run.moving])
                for part, part_bytes in lines[run.moving].slices(a, b):
                    slices.append(part)
                    size += part_bytes
        return tuple(slices), size


def _degrees(cuts: Cuts) -> list[list[int]]:
    """The cuts for a digest; those by owners of what is whole only where there are any."""
    return [sorted(d) for d in (cuts[:3] if cuts.whole == {1} else cuts)]


def plan_transfer(
    held: StateLayout,
    needed: StateLayout,
    node_of: Sequence[str],
    links: Links | None = None,
    *,
    message_bytes: int = MESSAGE_BYTES,
    grain_bytes: int = GRAIN_BYTES,
) -> Transfer:
    """The transfer that turns `held` into `needed`.

    Args:
        held: what each transport rank holds.
        needed: what each must hold, cut at the same refinement.
        node_of: name of the node of each transport rank.
        links: bytes per second; the usual ones if not given.
        message_bytes: about the size of a message.
        grain_bytes: less than this is not shared between two holders.

    Raises:
        StateLost: a needed piece has no holder.
    """
    nodes = node_indices(node_of)
    links = links or usual_links(max(nodes, default=-1) + 1)
    classes = moving_classes(held, needed)
    runs = share_out(classes, nodes, links, grain_bytes)
    return Transfer(
        regions=held.regions,
        classes=classes,
        runs=runs,
        nodes=nodes,
        links=links,
        message_bytes=message_bytes,
    )
