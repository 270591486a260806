"""The best mix of columns that the rows have room for: a small linear programme, and a whole one.

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
def left_of(room: Floats, uses: Floats, counts: Ints) -> Floats:
    """[R] what is left of the room; a loop, because numba's own product asks for scipy."""
    left = room.copy()
    for row in range(uses.shape[0]):
        for column in range(uses.shape[1]):
            left[row] -= uses[row, column] * counts[column]
    return left


@allocating
def best_mix(worth: Floats, uses: Floats, room: Floats, amounts: Floats, prices: Floats) -> float:
    """The best amounts, their prices, and what the mix is worth.

    Args:
        worth: [N] of one of each column.
        uses: [R, N], at least 0, with one positive in each column that is worth something.
        room: [R], at least 0.
        amounts: [N], the answer.
        prices: [R] what one more of each row would be worth, the answer.
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
    scale = 1e-300 if columns else 1.0
    for j in range(columns):
        gain[j] = worth[j]
        scale = max(scale, abs(worth[j]))
    for pivot in range(PIVOTS):
        entering = -1
        for j in range(width):
            if gain[j] > TINY * scale and (entering < 0 or gain[j] > gain[entering]):
                entering = j
                if pivot > PLAIN_PIVOTS:
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
        turn(body, gain, leaving, entering)
        basis[leaving] = entering
    for j in range(columns):
        amounts[j] = 0.0
    for i in range(rows):
        if basis[i] < columns:
            amounts[basis[i]] = max(0.0, body[i, width])
        prices[i] = max(0.0, -gain[columns + i])
    return -gain[width]


@jit
def turn(body: Floats, gain: Floats, leaving: int, entering: int) -> None:
    """One pivot of the tableau."""
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
def sort_by(values: Floats, order: Ints, sign: float) -> None:
    """Indices by ascending sign * value, equal ones in their order."""
    for i in range(len(values)):
        j = i
        while j > 0 and sign * values[order[j - 1]] > sign * values[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@allocating
def fill_rest(room: Floats, uses: Floats, worth: Floats, counts: Ints) -> float:
    """Add whole columns, those of the greatest worth first, until none fits.

    Args:
        room: [R] what is left.
        uses: [R, N].
        worth: [N].
        counts: [N] so many are taken already; changed.

    Returns:
        What all counts are worth.
    """
    left = left_of(room, uses, counts)
    total = 0.0
    for c in range(len(worth)):
        total += worth[c] * counts[c]
    order = np.empty(len(worth), np.int64)
    sort_by(worth, order, -1.0)
    for i in range(len(worth)):
        c = order[i]
        if worth[c] <= 0.0:
            break
        most = math.inf
        for row in range(len(left)):
            if uses[row, c] > 0.0:
                most = min(most, math.floor((left[row] + TINY) / uses[row, c]))
        if 0.0 < most < math.inf:
            counts[c] += int(most)
            total += most * worth[c]
            for row in range(len(left)):
                left[row] -= most * uses[row, c]
    return total


@allocating
def best_whole_mix(
    worth: Floats, uses: Floats, room: Floats, nodes: int, gap: float, counts: Ints
) -> float:
    """As `best_mix` with whole amounts: the best found within so many nodes, and its worth.

    Args:
        worth: [N].
        uses: [R, N].
        room: [R].
        nodes: linear programmes, at most.
        gap: a share of the best possible that may be missed.
        counts: [N], the answer.
    """
    rows, columns = uses.shape
    deepest = 40  # branches on the way to a node
    branch_column = np.zeros((nodes + 2, deepest), np.int64)
    branch_bound = np.zeros((nodes + 2, deepest), np.int64)
    branch_upper = np.zeros((nodes + 2, deepest), np.int64)
    branches = np.zeros(nodes + 2, np.int64)
    limit = np.zeros(nodes + 2)  # what the mixes below a node are worth at most
    limit[0] = math.inf
    open_nodes = 1
    best = -1.0
    amounts, prices = np.zeros(columns), np.zeros(rows + deepest)
    lower, upper = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
    trial = np.zeros(columns, np.int64)
    way_column, way_bound = np.zeros(deepest, np.int64), np.zeros(deepest, np.int64)
    way_upper = np.zeros(deepest, np.int64)
    for _ in range(nodes):
        if open_nodes == 0:
            break
        open_nodes -= 1
        if limit[open_nodes] <= best * (1 + gap):
            continue
        depth = branches[open_nodes]
        for c in range(columns):
            lower[c] = 0
            upper[c] = -1  # none
        for i in range(depth):
            way_column[i] = branch_column[open_nodes, i]
            way_bound[i] = branch_bound[open_nodes, i]
            way_upper[i] = branch_upper[open_nodes, i]
            c = way_column[i]
            if way_upper[i]:
                upper[c] = way_bound[i] if upper[c] < 0 else min(upper[c], way_bound[i])
            else:
                lower[c] = max(lower[c], way_bound[i])
        bounded = 0
        for c in range(columns):
            bounded += upper[c] >= 0
        wide = np.zeros((rows + bounded, columns))
        left = np.zeros(rows + bounded)
        own = left_of(room, uses, lower)
        is_possible = True
        for i in range(rows):
            left[i] = own[i]
            if own[i] < 0.0:
                is_possible = False
            for c in range(columns):
                wide[i, c] = uses[i, c]
        i = rows
        for c in range(columns):
            if upper[c] >= 0:
                wide[i, c] = 1.0
                left[i] = upper[c] - lower[c]
                if left[i] < 0.0:
                    is_possible = False
                i += 1
        if not is_possible:
            continue
        total = best_mix(worth, wide, left, amounts, prices[: len(left)])
        for c in range(columns):
            total += worth[c] * lower[c]
        if total <= best * (1 + gap):
            continue
        split = -1
        part = TINY
        for c in range(columns):
            trial[c] = lower[c] + int(amounts[c] + 1e-7)
            rest = amounts[c] - int(amounts[c] + 1e-7)
            if min(rest, 1 - rest) > part:
                split, part = c, min(rest, 1 - rest)
        whole = fill_rest(room, uses, worth, trial)
        if whole > best:
            best = whole
            for c in range(columns):
                counts[c] = trial[c]
        if split < 0 or depth == deepest or open_nodes + 2 > nodes:
            continue
        floor = lower[split] + int(amounts[split] + 1e-7)
        goes_up = amounts[split] - int(amounts[split]) > 0.5
        for last in range(2):  # the nearer side is pushed last and looked at first
            is_upper = goes_up if last == 0 else not goes_up
            for i in range(depth):
                branch_column[open_nodes, i] = way_column[i]
                branch_bound[open_nodes, i] = way_bound[i]
                branch_upper[open_nodes, i] = way_upper[i]
            branch_column[open_nodes, depth] = split
            branch_bound[open_nodes, depth] = floor if is_upper else floor + 1
            branch_upper[open_nodes, depth] = 1 if is_upper else 0
            branches[open_nodes] = depth + 1
            limit[open_nodes] = total
            open_nodes += 1
    return best
