"""How long a GPU may sum gradients in a template, so that the time T holds for all of them.

A layer's gradients are summed at the rate of the slowest NIC that holds it in any template.  So
columns are made for the types whose NICs are no slower than those of the best plan, at the rate of
its slowest one, and no stage sums longer than its longest does.
Source: Heddle, section 5.2 (gradient synchronisation).   Legend: O options, D stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints, Tables


@by_reference
class GradientLimit(NamedTuple):
    """The longest gradient sum of a stage.

    Attributes:
        block_s: [O] to sum a block on one GPU.
        ends_s: [O, 2] to sum embedding and head.
        most_s: of all that one GPU holds.
    """

    block_s: Floats
    ends_s: Floats
    most_s: float


@jit
def gradient_seconds(
    limit: GradientLimit, option: int, blocks: int, is_first: int, is_last: int
) -> float:
    """How long a stage sums gradients."""
    ends_s = is_first * limit.ends_s[option, 0] + is_last * limit.ends_s[option, 1]
    return blocks * limit.block_s[option] + ends_s


@jit
def is_within(limit: GradientLimit, depth: int, options: Ints, blocks: Ints) -> bool:
    """Whether all stages [D] of a template sum their gradients in time."""
    for s in range(depth):
        seconds = gradient_seconds(limit, options[s], blocks[s], s == 0, s == depth - 1)
        if seconds > limit.most_s:
            return False
    return True


def gradient_limit(t: Tables, slowest: float, most_s: float) -> GradientLimit:
    """Gradients are summed at `slowest` seconds per byte, and no longer than `most_s`."""
    layer_bytes = t.whole_bytes[:, None] + t.sharded_bytes[:, None] / t.option_tp  # [L + 2, O]
    fewest = [numel[:count].min() for numel, count in zip(t.expert_numel, t.variants, strict=True)]
    block_bytes = layer_bytes[t.layers] + t.state_bytes[1] * np.array(fewest)
    ends_s = 2 * slowest * layer_bytes[[0, -1]].T
    return GradientLimit(2 * slowest * block_bytes, np.ascontiguousarray(ends_s), most_s)
