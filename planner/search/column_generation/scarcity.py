"""The price of GPUs beyond the room, in pricing problems that do not know the room (Lagrange).

Invariant: prices are never negative.
Source: Polyak's step towards a relaxation that is worth nothing.   Legend: O rows of room.
"""

from __future__ import annotations

from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints

EASE = 0.8  # share of a price that is left once it has done its work


@jit
def ease(scarcity: Floats) -> None:
    """Lower all prices, which have done their work."""
    for row in range(len(scarcity)):
        scarcity[row] *= EASE


@jit
def climb(scarcity: Floats, asked: Floats, room: Floats | Ints, excess: float) -> None:
    """Raise the price of rows of which too much was asked, and lower that of the others.

    Args:
        scarcity: [O] prices so far; changed.
        asked: [O] GPUs that the best one asks for.
        room: [O] GPUs that it may ask for.
        excess: what the best one gains at these prices.
    """
    length = 0.0
    for row in range(len(scarcity)):
        over = asked[row] - room[row]
        if over > 0.0 or scarcity[row] > 0.0:
            length += over * over
    if length == 0.0:
        return
    for row in range(len(scarcity)):
        over = asked[row] - room[row]
        scarcity[row] = max(0.0, scarcity[row] + excess / length * over)
