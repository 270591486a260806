"""Whether all holders of a piece hold the same bytes, and one digest of the whole state.

One slot per piece of the model in canonical order, reduced over all ranks with minimum and maximum:
two holders that differ make them differ, whoever they are.  The digest depends on the state and on
where it is cut, not on who holds what, so before and after a change (cut alike) it is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch

from migration.errors import StateLost, TransferFailed
from migration.fingerprint import Host, as_it_is
from migration.layout import describe
from migration.transport import ReduceOp
from planner.plans.pieces import Piece

ReadPiece = Callable[[Piece], tuple[torch.Tensor, ...]]


class Reducer(Protocol):
    """Medium of the comparison of digests: a transport, or the world of an epoch."""

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce a host tensor of int64 over all ranks, in place."""


_ABSENT_LOW, _ABSENT_HIGH = (1 << 63) - 1, -1


def piece_digests(
    pieces: Iterable[Piece], read: ReadPiece, host: Host = as_it_is
) -> dict[Piece, int]:
    """63 bits of the bytes of each piece, all its parts together.

    Args:
        pieces: that this rank holds.
        read: gives the parts of a piece; they may be strided views.
        host: reads the numbers of a tensor of the device.
    """
    return {piece: _digest(read(piece), host) for piece in pieces}


def agree(transport: Reducer, all_pieces: Sequence[Piece], mine: Mapping[Piece, int]) -> str:
    """Compare the digests of all holders of every piece.

    Args:
        transport: all its ranks call this.
        all_pieces: of the model, in canonical order, the same on every rank.
        mine: digests of the pieces that this rank holds; may be empty.

    Returns:
        16 hex digits that name the whole state, the same on every rank.

    Raises:
        TransferFailed: two holders of a piece differ; the message names the first such piece.
        StateLost: nobody holds a piece.
    """
    low, high = bounds(
        transport,
        [mine.get(piece, _ABSENT_LOW) for piece in all_pieces],
        [mine.get(piece, _ABSENT_HIGH) for piece in all_pieces],
    )
    for piece, least, most in zip(all_pieces, low, high, strict=True):
        if most == _ABSENT_HIGH:
            raise StateLost(
                f"no live rank holds {describe(piece)}; the job can go on only from a checkpoint"
            )
        if least != most:
            raise TransferFailed(
                f"the holders of {describe(piece)} do not hold the same bytes; "
                "the old state is untouched"
            )
    vector = torch.tensor(high, dtype=torch.int64)
    return hashlib.blake2b(vector.numpy().tobytes(), digest_size=8).hexdigest()


def bounds(
    transport: Reducer, low: Sequence[int], high: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The minimum of `low` and the maximum of `high` over all ranks, in one reduction.

    Args:
        transport: all its ranks call this.
        low: 63-bit numbers.
        high: 63-bit numbers, as many.
    """
    both = torch.tensor([*high, *(-number for number in low)], dtype=torch.int64)
    transport.all_reduce_(both, "max")
    numbers = both.tolist()
    return [-number for number in numbers[len(high) :]], numbers[: len(high)]


def _digest(parts: tuple[torch.Tensor, ...], host: Host) -> int:
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        hasher.update(host(part.detach().reshape(-1).contiguous()).numpy().data)
    return int.from_bytes(hasher.digest(), "big") >> 1
