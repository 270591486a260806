"""The 1F1B order of a pipeline, played event by event.

Source: Zhou et al., Espresso, INFOCOM 2025 (DeepSpeed's order of instructions of each stage).
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def play(forward_s, backward_s, send_s, micro_batches, ends_s):
    """Write when each stage ends its last backward pass to `ends_s` [D]; returns the latest.

    Args:
        forward_s: [D] of one micro-batch.
        backward_s: [D].
        send_s: [D] a message from stage s to s + 1, and back; the last is not used.
        micro_batches: M.
        ends_s: [D] is written.
    """
    depth = len(forward_s)
    ahead = np.zeros(depth, np.int64)  # forward passes done
    back = np.zeros(depth, np.int64)  # backward passes done
    forward_end = np.zeros((depth, micro_batches))
    backward_end = np.zeros((depth, micro_batches))
    ends_s[:] = 0.0
    left = 2 * depth * micro_batches
    while left:
        for s in range(depth):
            while True:
                # a stage keeps as many micro-batches in flight as stages follow it, itself too
                wants_back = back[s] < ahead[s] and (
                    ahead[s] == micro_batches or ahead[s] - back[s] >= depth - s
                )
                if wants_back:
                    m = back[s]
                    if s + 1 < depth and back[s + 1] <= m:
                        break
                    ready = backward_end[s + 1, m] + send_s[s] if s + 1 < depth else ends_s[s]
                    ends_s[s] = max(ends_s[s], ready) + backward_s[s]
                    backward_end[s, m] = ends_s[s]
                    back[s] += 1
                elif ahead[s] < micro_batches:
                    m = ahead[s]
                    if s and ahead[s - 1] <= m:
                        break
                    ready = forward_end[s - 1, m] + send_s[s - 1] if s else 0.0
                    ends_s[s] = max(ends_s[s], ready) + forward_s[s]
                    forward_end[s, m] = ends_s[s]
                    ahead[s] += 1
                else:
                    break
                left -= 1
    return ends_s.max()
