"""How the stages of a plan spread their experts: what gradient sums and optimizer steps hang on.

Invariant: a stage is tiled as its fill was, by the fastest variant that fits.
Legend: K templates, D stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.kernel.bag import Bag
from planner.kernel.filling import variant_of
from planner.kernel.jit import inlined, jit
from planner.kernel.tables import MAX_DEPTH, Floats, Ints, Tables


class StageExperts(NamedTuple):
    """The routed experts of every stage; without experts in the model there are no rows.

    Attributes:
        ways: [K, D] EP x ETP, into how many parts experts are cut.
        numel: [K, D] elements of a block's experts on one GPU.
    """

    ways: Ints
    numel: Floats


@inlined
def has_experts(t: Tables) -> bool:
    """Whether the model has any."""
    return bool(t.expert_numel[0, 0] > 0)


@jit
def new_stage_experts(t: Tables, bag: Bag) -> StageExperts:
    """Look at every stage of a plan whose fillings are chosen."""
    rows = bag.number[0] if has_experts(t) else 0
    found = StageExperts(np.ones((rows, MAX_DEPTH), np.int64), np.zeros((rows, MAX_DEPTH)))
    for k in range(rows):
        f = bag.chosen[k]
        depth = bag.depth[k]
        stop = 0
        for s in range(depth):
            option = bag.options[k, s]
            start = stop
            stop += bag.blocks[k, f, s]
            others = stop - max(start, t.dense)
            found.ways[k, s] = t.option_tp[option]
            if others <= 0:
                continue
            variant = variant_of(
                t,
                option,
                bag.size[k, f],
                min(bag.most[k, f], depth - s),
                1 if s == 0 else 0,
                1 if s == depth - 1 else 0,
                bag.replicas[k],
                bag.blocks[k, f, s] - others,
                others,
            )
            found.ways[k, s] = t.ways[option, variant]
            found.numel[k, s] = t.expert_numel[option, variant]
    return found
