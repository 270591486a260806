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


def needed_bytes(
    model: ModelShape, move: Move, held: HeldState, precision: Precision = "fp32"
) -> int:
    """The most that this rank allocates until the vote, beside what it holds.

    What the next engine works on, and the messages under way; its buffer for the gradient sum, of
    at most 16 MiB, is not counted.
    """
    made = 0 if move.seat is None else bytes_to_make(model, move.seat, held, precision)
    return made + move.transfer.buffer_bytes(move.transport_rank)
