"""The restricted master problem as numbers: a linear programme, rounded down and completed.

With a dozen rows and a few hundred columns a plain simplex tableau takes well under a millisecond,
a fiftieth of a call to a solver in a library.
Invariant: amounts always fit; at the end of the simplex no column is worth more than its price.
Source: Dantzig's simplex method.   Legend: R rows, N columns.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.jit import allocating, inlined, jit
from planner.estimator.tables import Floats, Ints

TINY = 1e-9
PIVOTS = 2000
PLAIN_PIVOTS = 200  # after so many, the first column that gains enters, so that nothing cycles


@allocating
def maximise(worth: Floats, uses: Floats, room: Floats, amounts: Floats, duals: Floats) -> float:
    """The best amounts, the dual of each row, and what the amounts are worth.

    Args:
        worth: [N] of one of each column.
        uses: [R, N], at least 0, with one positive in each column that is worth something.
        room: [R], at least 0.
        amounts: [N] takes the amounts.
        duals: [R] takes what one more of each row would be worth.
    """
    rows, columns = uses.shape
    width = columns + rows
    body = np.zeros((rows, width + 1))
    gain = np.zeros(width + 1)
    basis = np.zeros(rows, np.int64)
    for i in range(rows):
        for j in range(columns):
            body[i, j] = uses[i, j]
        body[i, columns + i] = 1.0
        body[i, width] = room[i]
        basis[i] = columns + i
    scale = 1e-300
    for j in range(columns):
        gain[j] = worth[j]
        scale = max(scale, abs(worth[j]))
    for step in range(PIVOTS):
        entering = -1
        for j in range(width):
            if gain[j] > TINY * scale and (entering < 0 or gain[j] > gain[entering]):
                entering = j
                if step > PLAIN_PIVOTS:
                    break
        if entering < 0:
            break
        leaving = -1
        least = math.inf
        for i in range(rows):
            if body[i, entering] > TINY:
                ratio = body[i, width] / body[i, entering]
                if ratio < least - TINY or (ratio <= least and basis[i] < basis[leaving]):
                    least, leaving = ratio, i
        if leaving < 0:  # worth something and free of charge: no such column
            break
        pivot(body, gain, leaving, entering)
        basis[leaving] = entering
    for j in range(columns):
        amounts[j] = 0.0
    for i in range(rows):
        if basis[i] < columns:
            amounts[basis[i]] = max(0.0, body[i, width])
        duals[i] = max(0.0, -gain[columns + i])
    return -gain[width]


@inlined
def pivot(body: Floats, gain: Floats, leaving: int, entering: int) -> None:
    """One step of the simplex method on the tableau."""
    width = body.shape[1]
    by = body[leaving, entering]
    for j in range(width):
        body[leaving, j] /= by
    for i in range(body.shape[0]):
        share = body[i, entering]
        if i != leaving and share != 0.0:
            for j in range(width):
                body[i, j] -= share * body[leaving, j]
            if body[i, width - 1] < 0.0:  # rounding
                body[i, width - 1] = 0.0
    share = gain[entering]
    for j in range(width):
        gain[j] -= share * body[leaving, j]


@jit
def complete(left: Floats, uses: Floats, worth: Floats, counts: Ints) -> None:
    """Add whole columns [N] to the counts while any fits into what is left, the best first."""
    for c in range(len(worth)):
        most = math.inf if worth[c] > 0.0 else 0.0
        for row in range(len(left)):
            if uses[row, c] > 0.0:
                most = min(most, math.floor((left[row] + TINY) / uses[row, c]))
        if 0.0 < most < math.inf:
            counts[c] += int(most)
            for row in range(len(left)):
                left[row] -= most * uses[row, c]


def round_down(worth: Floats, uses: Floats, room: Floats, amounts: Floats) -> Ints:
    """Whole parts of the amounts, and what still fits beside them."""
    counts = np.floor(amounts + 1e-7).astype(np.int64)
    complete(room - uses @ counts, uses, worth, counts)
    return counts
