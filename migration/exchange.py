"""Run my part of a transfer: pack, wire and unpack side by side.

Nothing is written to the old state: what arrives goes straight into the tensors of the new one,
which nobody uses until all ranks have voted, so that a failure at any point leaves the old plan
able to go on.  A part of a slice that is large and contiguous is sent from, or received into, the
tensor itself; the rest of a message travels in one buffer behind its header.  The header carries
what the message is and the fingerprint of its slices, so that a stale or damaged one cannot pass
for state.
Invariant: operations are posted in the order of the transfer and awaited in the same order, at most
`MAX_OPERATIONS` under way but for one whole message; see `migration.transfer` why that ends.  A
transport with rounds starts those of one round together; see `migration.rounds`.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from migration.digest import bounds
from migration.errors import TransferFailed
from migration.fingerprint import fingerprint
from migration.slices import Slice
from migration.transfer import HEADER_BYTES, MAX_OPERATIONS, Message, Transfer, Turn
from migration.transport import Pending, Transport

Views = tuple[torch.Tensor, ...]
ReadSlice = Callable[[Slice], Views]

HEADER = struct.Struct("<qqqqQ")  # epoch, step, sequence, bytes, fingerprint
assert HEADER.size == HEADER_BYTES
DIRECT_BYTES = 1 << 18  # smaller views travel in the buffer: an operation costs about as much


@dataclass(slots=True, kw_only=True)
class _Underway:
    """A message that is posted and not awaited.

    Attributes:
        message: that it is.
        pending: its operations.
        views: of its slices, part by part.
        buffer: header and small or strided views.
        staged: (a large view, what travels for it: itself if it is contiguous).
        direct_bytes: views of as many bytes are large.
    """

    message: Message
    views: Views
    buffer: torch.Tensor
    pending: list[Pending] = field(default_factory=list)
    staged: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    direct_bytes: float = DIRECT_BYTES

    @classmethod
    def of(
        cls, message: Message, transport: Transport, read: ReadSlice, write: ReadSlice
    ) -> _Underway:
        """A message with the views of its slices, and nothing posted."""
        is_read = message.sender == transport.rank and message.after is None
        where = read if is_read else write
        views = tuple(view.detach() for part in message.slices for view in where(part))
        _check_size(message, views, transport.rank)
        direct_bytes = math.inf if transport.in_rounds else DIRECT_BYTES
        size = sum(view.nbytes for view in views if view.nbytes < direct_bytes)
        buffer = torch.empty(HEADER.size + size, dtype=torch.uint8, device=transport.device)
        return cls(message=message, views=views, buffer=buffer, direct_bytes=direct_bytes)

    def direct(self) -> Iterator[torch.Tensor]:
        """The views that travel as operations of their own: both ends decide by the size alone."""
        return (view for view in self.views if view.nbytes >= self.direct_bytes)

    def packed(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(its place in the buffer, view) of all others."""
        start = HEADER.size
        for view in self.views:
            if view.nbytes < self.direct_bytes:
                place = self.buffer[start : start + view.nbytes]
                yield place.view(view.dtype).view(view.shape), view
                start += view.nbytes

    def fill(self, transport: Transport, stamp: tuple[int, int]) -> None:
        """Pack the small views behind a header that fingerprints all."""
        for place, view in self.packed():
            place.copy_(view)
        message, found = self.message, fingerprint(self.views, transport.host)
        head = HEADER.pack(*stamp, message.sequence, message.num_bytes, found)
        header = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        transport.fill(self.buffer[: HEADER.size], header)


def exchange_state(
    transfer: Transfer,
    transport: Transport,
    read: ReadSlice,
    write: ReadSlice,
    *,
    epoch: int,
    step: int,
) -> None:
    """Send what the transfer asks of this rank and receive what it brings.

    All ranks of the transport call this, also those without a message.

    Args:
        transfer: the same on every rank, which is checked before the first byte.
        transport: my rank in it is the sender and receiver that the transfer means.
        read: gives views of the parts of a slice (weight, exp_avg, exp_avg_sq) that this rank
            holds; of a slice that came in this transfer, `write` is asked instead.
        write: gives views of where the parts of a slice go.
        epoch: that is being formed.
        step: completed steps of the state.

    Raises:
        TransferFailed: ranks disagree about the transfer, a peer is gone, or a message is not what
            was sent.
    """
    low, high = bounds(transport, *[[transfer.digest]] * 2)
    if low != high:
        raise TransferFailed(
            "ranks disagree about the plan of the migration; "
            "nothing was sent and the old state is untouched"
        )
    move = _in_rounds if transport.in_rounds else _in_windows
    move(transfer, transport, read, write, (epoch, step))


def _in_rounds(
    transfer: Transfer,
    transport: Transport,
    read: ReadSlice,
    write: ReadSlice,
    stamp: tuple[int, int],
) -> None:
    """Round by round, each message one operation; see `migration.rounds` why that ends."""
    for messages in transfer.rounds(transport.rank):
        sends, receives = [], []
        for message in messages:
            one = _Underway.of(message, transport, read, write)
            if message.sender == transport.rank:
                one.fill(transport, stamp)
                sends.append(one)
            else:
                receives.append(one)
        transport.exchange(
            [(one.message.receiver, one.buffer) for one in sends],
            [(one.message.sender, one.buffer) for one in receives],
        ).wait()
        for one in receives:
            _unpack(one, transport, stamp)


def _in_windows(
    transfer: Transfer,
    transport: Transport,
    read: ReadSlice,
    write: ReadSlice,
    stamp: tuple[int, int],
) -> None:
    """As many messages under way as may be, awaited in the order in which they were posted."""
    arrived: set[Turn] = set()
    underway: deque[_Underway] = deque()
    operations = 0

    def finish() -> int:
        """Await the first message under way; answers how many operations it had."""
        first = underway.popleft()
        for pending in first.pending:
            pending.wait()
        if first.message.receiver == transport.rank:
            _unpack(first, transport, stamp)
            arrived.add(first.message.turn)
        return len(first.pending)

    for message in transfer.messages(transport.rank):
        sends = message.sender == transport.rank
        needed = {message.after} - {None} if sends else set()
        while underway and (operations >= MAX_OPERATIONS or not needed <= arrived):
            operations -= finish()
        one = _Underway.of(message, transport, read, write)
        underway.append(one)
        if sends:
            _send(one, transport, stamp)
        else:
            _receive(one, transport)
        operations += len(one.pending)
    while underway:
        finish()


def _send(one: _Underway, transport: Transport, stamp: tuple[int, int]) -> None:
    """Post the large views, then the others behind a header that fingerprints all."""
    receiver = one.message.receiver
    for view in one.direct():
        one.staged.append((view, view.contiguous()))  # itself, if it is
        one.pending.append(transport.post_send(receiver, one.staged[-1][1]))
    one.fill(transport, stamp)
    one.pending.append(transport.post_send(receiver, one.buffer))


def _receive(one: _Underway, transport: Transport) -> None:
    """Post the receives of a message."""
    for view in one.direct():
        target = view
        if not view.is_contiguous():
            target = torch.empty(view.shape, dtype=view.dtype, device=view.device)
        one.staged.append((view, target))
        one.pending.append(transport.post_receive(one.message.sender, target))
    one.pending.append(transport.post_receive(one.message.sender, one.buffer))


def _unpack(one: _Underway, transport: Transport, stamp: tuple[int, int]) -> None:
    """Put a message where it belongs and compare it with its header."""
    message = one.message
    where = f"the message from rank {message.sender} to rank {message.receiver}"
    *found, sent = HEADER.unpack(transport.host(one.buffer[: HEADER.size]).numpy().tobytes())
    expected = [*stamp, message.sequence, message.num_bytes]
    if found != expected:
        raise TransferFailed(
            f"{where} says (epoch, step, sequence, bytes) {tuple(found)}, "
            f"expected {tuple(expected)}; the old state is untouched"
        )
    for view, came in one.staged:
        if came is not view:
            view.copy_(came)
    for source, view in one.packed():
        view.copy_(source)
    if fingerprint(one.views, transport.host) != sent:
        raise TransferFailed(
            f"{where} was damaged on its way (fingerprint); the old state is untouched"
        )


def _check_size(message: Message, views: Views, rank: int) -> None:
    """A rank that does not hold what it should stops before a byte of the message is sent."""
    size = sum(view.nbytes for view in views)
    if size != message.num_bytes:
        raise TransferFailed(
            f"rank {rank} has {size} of the {message.num_bytes} bytes of a message from rank "
            f"{message.sender} to rank {message.receiver}; "
            "its engine does not sit where the plan says"
        )
