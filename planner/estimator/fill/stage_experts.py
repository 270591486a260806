"""How the stages of a plan spread their experts: what gradient sums and optimizer steps hang on.

Invariant: a stage is tiled as its fill was, by the fastest variant that fits.
Legend: K templates, D stages.
"""

from __future__ import annotations

from planner.estimator.fill.filling import variant_of
from planner.estimator.fill.stage import slot_of
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Tables
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.workspace import Workspace


@inlined
def has_experts(t: Tables) -> bool:
    """Whether the model has any."""
    return bool(t.expert_numel[0, 0] > 0)


@jit
def look_at_experts(t: Tables, plan: UnplacedPlan, work: Workspace) -> None:
    """Fill `ways` and `numel` for every stage of a plan whose fillings are chosen."""
    for k in range(plan.number[0] if has_experts(t) else 0):
        f = plan.chosen[k]
        depth = plan.depth[k]
        stop = 0
        for s in range(depth):
            option = plan.options[k, s]
            start = stop
            stop += plan.blocks[k, f, s]
            others = stop - max(start, t.dense)
            work.ways[k, s] = t.option_tp[option]
            work.numel[k, s] = 0.0
            if others <= 0:
                continue
            slot = slot_of(option, plan.size[k, f], s, depth, plan.most[k, f], plan.replicas[k])
            variant = variant_of(t, slot, plan.blocks[k, f, s] - others, others)
            work.ways[k, s] = t.ways[option, variant]
            work.numel[k, s] = t.expert_numel[option, variant]
