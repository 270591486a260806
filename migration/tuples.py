"""What must move between two layouts, and who sends it.

Only bytes that a member needs and does not hold move; a local copy is no tuple.  Pure and
deterministic: every rank replays the same choice, so that sender and receiver agree on every peer
and size without negotiating.
Source: Heddle, section 5.6 (migration tuples).  The sender is the paper's "best link" refined by
load, as equal links would all choose the same one (Hetu's switch planner, checkpoint-engine).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from migration.errors import StateLost
from migration.layout import StateLayout, describe
from planner.plans.pieces import Piece

CHUNK_BYTES = 16_000_000  # larger pieces are cut, so that several holders can share the sending


class MigrationTuple(NamedTuple):
    """Bytes `[start, stop)` of a piece's state, from one transport rank to another.

    The state of a piece is its parts (weight, exp_avg, exp_avg_sq) one after the other.
    """

    piece: Piece
    sender: int
    receiver: int
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Bytes that travel."""
        return self.stop - self.start


def difference(
    held: StateLayout,
    needed: StateLayout,
    piece_bytes: Mapping[Piece, int],
    node_of: Sequence[str],
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[MigrationTuple, ...]:
    """The tuples that turn `held` into `needed`, in the order in which their senders were chosen.

    The scarcest and the largest pieces choose first.  A sender is on the receiver's node if any
    holder is; else its node has sent the fewest bytes to other nodes.  Then it is the one that has
    sent the fewest bytes; ties go to the lower rank.

    Args:
        held: what each transport rank holds.
        needed: what each must hold, cut at the same refinement.
        piece_bytes: of the state of each piece.
        node_of: name of the node of each transport rank.
        chunk_bytes: the largest tuple.

    Raises:
        StateLost: a needed piece has no holder.
    """
    holders = held.holders()
    wanted = _missing(held, needed)
    for piece in sorted(wanted):
        if piece not in holders:
            raise StateLost(
                f"no live rank holds {describe(piece)}; the job can go on only from a checkpoint, "
                "and a larger spec.elastic.minHolders keeps more copies"
            )
    sent: Counter[int] = Counter()
    sent_by_node: Counter[str] = Counter()  # to other nodes, over its network card
    tuples: list[MigrationTuple] = []

    def cost(sender: int, node: str) -> tuple[bool, int, int, int]:
        crosses = node_of[sender] != node
        return crosses, sent_by_node[node_of[sender]] if crosses else 0, sent[sender], sender

    for piece in sorted(
        wanted, key=lambda piece: (len(holders[piece]), -piece_bytes[piece], piece)
    ):
        for receiver in wanted[piece]:
            for start, stop in _chunks(piece_bytes[piece], chunk_bytes):
                sender = min(holders[piece], key=lambda rank: cost(rank, node_of[receiver]))
                sent[sender] += stop - start
                if node_of[sender] != node_of[receiver]:
                    sent_by_node[node_of[sender]] += stop - start
                tuples.append(MigrationTuple(piece, sender, receiver, start, stop))
    return tuple(tuples)


def bytes_missing(
    held: StateLayout, needed: StateLayout, piece_bytes: Mapping[Piece, int]
) -> tuple[int, ...]:
    """Per transport rank, the bytes of its new layout that it does not hold."""
    return tuple(
        sum(piece_bytes[piece] for piece in set(after) - set(before))
        for before, after in zip(held.pieces, needed.pieces, strict=True)
    )


def bytes_minimum(held: StateLayout, needed: StateLayout, piece_bytes: Mapping[Piece, int]) -> int:
    """The fewest bytes that can move between two layouts, summed over ranks."""
    return sum(bytes_missing(held, needed, piece_bytes))


def _missing(held: StateLayout, needed: StateLayout) -> dict[Piece, list[int]]:
    """{piece: the transport ranks that need it and do not hold it, ascending}."""
    wanted: dict[Piece, list[int]] = {}
    for rank, (before, after) in enumerate(zip(held.pieces, needed.pieces, strict=True)):
        have = set(before)
        for piece in after:
            if piece not in have:
                wanted.setdefault(piece, []).append(rank)
    return wanted


def _chunks(size: int, chunk_bytes: int) -> list[tuple[int, int]]:
    return [(start, min(start + chunk_bytes, size)) for start in range(0, size, chunk_bytes)]
