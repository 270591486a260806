"""Matrix products that stay on one thread.

The matrices of a policy are small: a second thread gains nothing, and on a busy machine the first
one waits for it ten times as long as the product takes.  OpenBLAS decides by the number of
multiplications, so the rows are taken a few at a time.
Invariant: the product is that of numpy, up to the order of its sums.
Source: OpenBLAS, interface/gemm.c (65,536 x 4 multiplications).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Array: TypeAlias = NDArray[np.float32]

MOST = 1 << 18  # multiplications that are left to one thread


def product(rows: _Array, weights: _Array) -> _Array:
    """[R, K] times [K, N]."""
    few = max(1, MOST // weights.size)
    if len(rows) <= few:
        found: _Array = rows @ weights
        return found
    out = np.empty((len(rows), weights.shape[1]), rows.dtype)
    for first in range(0, len(rows), few):
        np.matmul(rows[first : first + few], weights, out=out[first : first + few])
    return out
