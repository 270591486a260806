"""Whether what a change makes on a rank fits beside what the rank trains.

Until the vote the old state stays whole, so a change needs the destination shards and the messages
under way on top of it.  One that does not fit is refused before anything is allocated: a rank that
runs out of memory later would take the old plan with it.
Source: docs/decisions/0014.
"""

from __future__ import annotations

from planner.model.shape import ModelShape
from worker.rank.move import Move
from worker.state.held_state import HeldState
from worker.state.shards import bytes_to_make
from worker.training_settings import Precision
from worker.world.world import rank_sets


def group_bytes_of(move: Move, modelled_bytes: int) -> int:
    """Memory of the device that each communicator of a rank holds, as the planner counts it.

    Args:
        move: of this rank, with the planner's bytes by GPU type; a rank that leaves takes the most.
        modelled_bytes: of its wire, where the planner says nothing; 0: it has no communicators.
    """
    told = move.directive.group_bytes
    if not modelled_bytes or not told:
        return modelled_bytes
    if move.seat is None:
        return max(told.values())
    return told.get(move.seat.gpu_type, modelled_bytes)


def needed_bytes(
    model: ModelShape,
    move: Move,
    held: HeldState,
    precision: Precision,
    modelled_bytes: int,
) -> int:
    """The most that this rank allocates until the vote, beside what it holds.

    What the next engine works on, the messages under way, and what communicators hold; its buffer
    for the gradient sum, of at most 16 MiB, is not counted.

    Args:
        model: that is trained.
        move: of this rank.
        held: by it now.
        precision: of the training.
        modelled_bytes: see `group_bytes_of`.
    """
    made = 0 if move.seat is None else bytes_to_make(model, move.seat, held, precision)
    groups = 1  # of the transport
    if move.seat is not None:
        rank = move.seat.rank
        groups += sum(rank in ranks for ranks in rank_sets(model, move.plan))
    held_bytes = groups * group_bytes_of(move, modelled_bytes)
    return made + move.transfer.buffer_bytes(move.transport_rank) + held_bytes
