"""Templates that are worth more than their GPUs cost, the best so many of them.

Invariant: no row that is held is worth less than one that was turned away.
Source: research on plan search (column generation).   Legend: C columns, D stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import jit
from planner.estimator.tables import MAX_DEPTH, Floats, Ints


@by_reference
class Columns(NamedTuple):
    """Templates that are worth more than they cost; the first `number[0]` rows hold.

    Attributes:
        number: [1] of them.
        gain: [C] samples beyond the price of the GPUs, of one replica.
        size: [C] index of the micro-batch size.
        together: [C] replicas come in multiples of this, so that experts can be tiled.
        depth: [C].
        options: [C, D].
        blocks: [C, D].
    """

    number: Ints
    gain: Floats
    size: Ints
    together: Ints
    depth: Ints
    options: Ints
    blocks: Ints


def new_columns(most: int) -> Columns:
    """Room for so many columns."""
    return Columns(
        np.zeros(1, np.int64),
        np.zeros(most),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros((most, MAX_DEPTH), np.int64),
        np.zeros((most, MAX_DEPTH), np.int64),
    )


@jit
def keep_column(columns: Columns, gain: float) -> int:
    """The row for a new column with that gain; -1 if others are better."""
    count = columns.number[0]
    if count < len(columns.gain):
        columns.number[0] = count + 1
        return count
    worst = 0
    for row in range(count):
        if columns.gain[row] < columns.gain[worst]:
            worst = row
    return worst if columns.gain[worst] < gain else -1
