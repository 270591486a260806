"""The restricted master problem as numbers: a linear programme, and whole amounts by branching.

With a dozen rows and a few hundred columns a plain simplex tableau takes well under a millisecond,
a fiftieth of a call to a solver in a library.  Whole amounts come from depth-first branching, with
a greedy completion at every node.
Invariant: amounts always fit; at the end of the simplex no column is worth more than its price.
Source: Dantzig's simplex method; Land and Doig, branch and bound (1960).
Legend: R rows, N columns.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.jit import allocating, jit
from planner.estimator.tables import Floats, Ints

TINY = 1e-9
PIVOTS = 2000
PLAIN_PIVOTS = 200  # after so many, the first column that gains enters, so that nothing cycles


@allocating
def maximise(worth: Floats, uses: Floats, room: Floats, amounts: Floats, duals: Floats) -> float:
    """The best amounts, the price of each row, and what the amounts are worth.

    Args:
        worth: [N] of one of each column.
        uses: [R, N], at least 0, with one positive in each column that is worth something.
        room: [R], at least 0.
        amounts: [N], the answer.
        duals: [R] what one more of each row would be worth, the answer.
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


@jit
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
def complete(left: Floats, uses: Floats, worth: Floats, counts: Ints) -> float:
    """Add whole columns while any fits, those of the greatest worth first.

    Args:
        left: [R] room; changed.
        uses: [R, N].
        worth: [N], descending.
        counts: [N] so many are taken already; changed.

    Returns:
        What all counts are worth.
    """
    total = 0.0
    for c in range(len(worth)):
        most = math.inf if worth[c] > 0.0 else 0.0
        for row in range(len(left)):
            if uses[row, c] > 0.0:
                most = min(most, math.floor((left[row] + TINY) / uses[row, c]))
        if 0.0 < most < math.inf:
            counts[c] += int(most)
            for row in range(len(left)):
                left[row] -= most * uses[row, c]
        total += worth[c] * counts[c]
    return total


def round_down(worth: Floats, uses: Floats, room: Floats, amounts: Floats) -> tuple[Ints, float]:
    """Whole parts of the amounts, and what still fits beside them; and what they are worth."""
    counts = np.floor(amounts + 1e-7).astype(np.int64)
    return counts, complete(room - uses @ counts, uses, worth, counts)


def branch_and_bound(worth: Floats, uses: Floats, room: Floats, nodes: int, gap: float) -> Ints:
    """[N] the best whole amounts found within so many nodes.

    Args:
        worth: [N], descending.
        uses: [R, N].
        room: [R].
        nodes: linear programmes, at most.
        gap: a share of the best possible that may be missed.
    """
    columns = len(worth)
    best, best_counts = 0.0, np.zeros(columns, np.int64)
    stack = [(math.inf, np.zeros(columns), np.full(columns, math.inf))]  # bound, least, most
    for _ in range(nodes):
        if not stack:
            break
        bound, least, most = stack.pop()
        left = room - uses @ least
        if bound <= best * (1 + gap) or left.min() < 0:
            continue
        bounded = np.flatnonzero(most < math.inf)
        amounts = np.zeros(columns)
        total = float(worth @ least) + maximise(
            worth,
            np.vstack([uses, np.eye(columns)[bounded]]),
            np.append(left, (most - least)[bounded]),
            amounts,
            np.zeros(len(room) + len(bounded)),
        )
        if total <= best * (1 + gap):
            continue
        amounts += least
        counts, whole = round_down(worth, uses, room, amounts)
        if whole > best:
            best, best_counts = whole, counts
        parts = np.abs(amounts - np.round(amounts))
        split = int(np.argmax(parts))
        if parts[split] > TINY:
            below, above = most.copy(), least.copy()
            below[split], above[split] = math.floor(amounts[split]), math.ceil(amounts[split])
            sides = [(total, least, below), (total, above, most)]
            stack += sides if amounts[split] % 1 > 0.5 else sides[::-1]  # the nearer one is next
    return best_counts
