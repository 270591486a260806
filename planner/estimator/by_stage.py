"""How long the pipelines of a plan take where nodes take one stage of many replicas.

Fewer rings then share a NIC while gradients are summed, as replicas of a stage send them once.  But
all messages between stages cross nodes, where a fill counts on neighbours (`stage.fixed_seconds`).
Plans are placed both ways, and the better counts.
Invariant: exact for the fillings that are chosen; never less than with neighbours.
Source: `planner.placement.place`, whose rule is "by stage".   Legend: K templates.
"""

from __future__ import annotations

import math

from planner.estimator.bag import Bag
from planner.estimator.bench import PriceBench
from planner.estimator.fill.given_blocks import split_seconds
from planner.estimator.fill.stage import fixed_seconds
from planner.estimator.jit import inlined
from planner.estimator.sharing import choose, pipeline_seconds
from planner.estimator.tables import Tables


@inlined
def by_stage_seconds(t: Tables, bag: Bag, work: PriceBench, limit_s: float) -> float:
    """The least time in which the replicas then train the batch; infinite if they cannot.

    Args:
        t: what it prices with.
        bag: a plan whose fillings are chosen.
        work: for the function's own use.
        limit_s: what takes longer counts as infinite, and is known sooner.
    """
    there = work.by_stage
    there.number[0] = bag.number[0]
    for k in range(bag.number[0]):
        f = bag.chosen[k]
        size, most = bag.size[k, f], bag.most[k, f]
        options, depth, replicas = bag.options[k], bag.depth[k], bag.replicas[k]
        fixed_seconds(t, options, depth, size, True, work.fixed_s)
        tau_s, sum_s = split_seconds(
            t, options, depth, bag.blocks[k, f], replicas, size, most, True, work.fixed_s
        )
        there.replicas[k] = replicas
        there.filling_count[k, 0] = 1
        there.size[k, 0] = size
        there.most[k, 0] = most
        there.tau_s[k, 0] = tau_s
        there.sum_s[k, 0] = sum_s
    if limit_s < math.inf and choose(t.sizes, there, limit_s, t.batch) < t.batch:
        return math.inf
    return pipeline_seconds(t, there)
