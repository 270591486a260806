"""How the stages of a plan spread their experts: what gradient sums and optimizer steps hang on.

Invariant: a stage is tiled as its fill was, by the fastest variant that fits.
Legend: K templates, D stages.
"""

from __future__ import annotations

from planner.estimator.bag import Bag
from planner.estimator.bench import StageExperts
from planner.estimator.fill.filling import variant_of
from planner.estimator.fill.stage import slot_of
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Tables


@inlined
def has_experts(t: Tables) -> bool:
    """Whether the model has any."""
    return bool(t.expert_numel[0, 0] > 0)


@jit
def look_at_experts(t: Tables, bag: Bag, found: StageExperts) -> None:
    """Look at every stage of a plan whose fillings are chosen; nothing without experts."""
    for k in range(bag.number[0] if has_experts(t) else 0):
        f = bag.chosen[k]
        depth = bag.depth[k]
        stop = 0
        for s in range(depth):
            option = bag.options[k, s]
            start = stop
            stop += bag.blocks[k, f, s]
            others = stop - max(start, t.dense)
            found.ways[k, s] = t.option_tp[option]
            found.numel[k, s] = 0.0
            if others <= 0:
                continue
            slot = slot_of(option, bag.size[k, f], s, depth, bag.most[k, f], bag.replicas[k])
            variant = variant_of(t, slot, bag.blocks[k, f, s] - others, others)
            found.ways[k, s] = t.ways[option, variant]
            found.numel[k, s] = t.expert_numel[option, variant]
