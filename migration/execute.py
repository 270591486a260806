"""Run my part of a schedule over a transport.

Nothing is written to the old state: what arrives lies in fresh tensors until all ranks have voted,
so that a failure at any point leaves the old plan able to go on.  A message carries a header, so
that a short, stale or damaged one cannot pass for state.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping

import torch

from migration.digest import ReadPiece, bounds
from migration.errors import TransferFailed
from migration.layout import PARTS
from migration.schedule import Message, Schedule, schedule_digest
from migration.transport import Transport
from planner.plans.pieces import Piece

HEADER = struct.Struct("<qqqqq")  # epoch, step, round, body bytes, crc32 of the body
State = dict[Piece, tuple[torch.Tensor, ...]]


def exchange_state(
    schedule: Schedule,
    transport: Transport,
    read: ReadPiece,
    shapes: Mapping[Piece, tuple[int, ...]],
    *,
    epoch: int,
    step: int,
) -> State:
    """Send what the schedule asks of this rank and return what it receives.

    All ranks of the transport call this, also those without a message.

    Args:
        schedule: the same on every rank, which is checked before the first byte.
        transport: my rank in it is the sender and receiver that the schedule means.
        read: gives the parts (weight, exp_avg, exp_avg_sq) of a piece that this rank holds, fp32,
            of the piece's shape; strided views are fine.
        shapes: of every piece (`planner.plans.pieces.piece_shapes`).
        epoch: that is being formed.
        step: completed steps of the state.

    Returns:
        {piece: (weight, exp_avg, exp_avg_sq)}, every piece that came, in fresh tensors of its
        shape.

    Raises:
        TransferFailed: ranks disagree about the schedule, a peer is gone, or a message is not what
            was sent.
    """
    low, high = bounds(transport, *[[schedule_digest(schedule)]] * 2)
    if low != high:
        raise TransferFailed(
            "ranks disagree about the schedule of the migration; "
            "nothing was sent and the old state is untouched"
        )
    arrived: dict[Piece, torch.Tensor] = {}
    for index, messages in enumerate(schedule.rounds):
        outgoing = [message for message in messages if message.sender == transport.rank]
        incoming = [message for message in messages if message.receiver == transport.rank]
        buffers = [_empty_bytes(HEADER.size + message.num_bytes, transport) for message in incoming]
        transport.exchange(
            [(m.receiver, _pack(m, read, transport, (epoch, step, index))) for m in outgoing],
            [(m.sender, buffer) for m, buffer in zip(incoming, buffers, strict=True)],
        )
        for message, buffer in zip(incoming, buffers, strict=True):
            _unpack(
                _checked(message, buffer, (epoch, step, index)), message, arrived, shapes, transport
            )
    return {piece: _parts(flat, shapes[piece]) for piece, flat in arrived.items()}


def _pack(
    message: Message, read: ReadPiece, transport: Transport, stamp: tuple[int, int, int]
) -> torch.Tensor:
    """Header and body of a message as one uint8 tensor."""
    buffer = _empty_bytes(HEADER.size + message.num_bytes, transport)
    body = buffer[HEADER.size :]
    offset = 0
    for move in message.tuples:
        position = 0  # of the present part within the piece's state
        for part in read(move.piece):
            size = part.numel() * part.element_size()
            start, stop = max(move.start - position, 0), min(move.stop - position, size)
            if start < stop:
                piece_bytes = part.detach().reshape(-1).view(torch.uint8)
                body[offset : offset + stop - start] = piece_bytes[start:stop]
                offset += stop - start
            position += size
    if offset != message.num_bytes:
        raise TransferFailed(
            f"rank {transport.rank} holds {offset} of the {message.num_bytes} bytes "
            "that it should send; its engine does not sit where the plan says"
        )
    head = HEADER.pack(*stamp, message.num_bytes, _checksum(body))
    buffer[: HEADER.size] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    return buffer


def _checked(message: Message, buffer: torch.Tensor, stamp: tuple[int, int, int]) -> torch.Tensor:
    """The body of a message that came whole, for this epoch, step and round."""
    head = HEADER.unpack(buffer[: HEADER.size].cpu().numpy().tobytes())
    body = buffer[HEADER.size :]
    where = f"the message from rank {message.sender} to rank {message.receiver}"
    if head[:4] != (*stamp, message.num_bytes):
        raise TransferFailed(
            f"{where} says (epoch, step, round, bytes) {head[:4]}, "
            f"expected {(*stamp, message.num_bytes)}; the old state is untouched"
        )
    if head[4] != _checksum(body):
        raise TransferFailed(
            f"{where} was damaged on its way (checksum); the old state is untouched"
        )
    return body


def _unpack(
    body: torch.Tensor,
    message: Message,
    arrived: dict[Piece, torch.Tensor],
    shapes: Mapping[Piece, tuple[int, ...]],
    transport: Transport,
) -> None:
    offset = 0
    for move in message.tuples:
        if move.piece not in arrived:
            numel = PARTS * math.prod(shapes[move.piece])
            arrived[move.piece] = torch.empty(numel, dtype=torch.float32, device=transport.device)
        flat = arrived[move.piece].view(torch.uint8)
        flat[move.start : move.stop] = body[offset : offset + move.num_bytes]
        offset += move.num_bytes


def _parts(flat: torch.Tensor, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(part.view(shape) for part in flat.chunk(PARTS))


def _empty_bytes(size: int, transport: Transport) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=transport.device)


def _checksum(body: torch.Tensor) -> int:
    return zlib.crc32(body.cpu().numpy().data)
