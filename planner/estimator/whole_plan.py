"""Cost of a whole plan: its pipelines placed the better way, gradients summed, the step made.

Invariant: the seconds of the pipelines are exact for stages placed as `stage.fixed_seconds` thinks,
those of the optimizer always.  `planner.cost.evaluate` has the last word.
Source: Heddle, sections 5.2 and 5.3.
"""

from __future__ import annotations

import math

from planner.estimator import rules
from planner.estimator.fill.filling import split_seconds
from planner.estimator.fill.runs import cut_runs
from planner.estimator.fill.stage import fixed_seconds, parameters_of
from planner.estimator.fill.stage_experts import has_experts, look_at_experts
from planner.estimator.gradient_sync import broadcast_seconds, sync_seconds
from planner.estimator.jit import inlined, jit
from planner.estimator.sharing import choose, pipeline_seconds
from planner.estimator.tables import Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.workspace import Workspace


@inlined
def optimizer_seconds(t: Tables, plan: UnplacedPlan, work: Workspace) -> float:
    """The longest optimizer step of any rank."""
    longest_s = 0.0
    for k in range(plan.number[0]):
        start = 0
        for s in range(plan.depth[k]):
            option = plan.options[k, s]
            kind = t.option_type[option]
            stop = start + plan.blocks[k, plan.chosen[k], s]
            dense = min(stop, t.dense) - min(start, t.dense)
            others = stop - start - dense
            is_last = int(s == plan.depth[k] - 1)
            held = parameters_of(t, option, int(s == 0), is_last, dense, others)
            if t.zero:
                held = rules.zero_cut(held, plan.replicas[k])
            if has_experts(t) and others:
                copies = 1
                if t.zero:
                    copies = rules.expert_copies(
                        plan.replicas[k], t.option_tp[option], work.ways[k, s]
                    )
                held += rules.zero_cut(others * work.numel[k, s], copies)
            own_s = rules.optimizer_seconds(held, t.optimizer_s[kind, 0], t.optimizer_s[kind, 1])
            longest_s = max(longest_s, own_s)
            start = stop
    return longest_s


@inlined
def by_stage_seconds(t: Tables, plan: UnplacedPlan, work: Workspace, limit_s: float) -> float:
    """The least time of the batch where nodes take one stage of many replicas; infinite if none.

    Fewer rings then share a NIC while gradients are summed, as replicas of a stage send them once.
    But messages between stages cross nodes that have no room for the replicas of both.
    """
    work.there.number[0] = 0
    for k in range(plan.number[0]):
        add_placed(t, plan, k, plan.replicas[k], plan.replicas[k], t.node_gpus, work)
    return there_seconds(t, work, limit_s)


@inlined
def by_replica_seconds(
    t: Tables, plan: UnplacedPlan, work: Workspace, seconds: float, limit_s: float
) -> float:
    """The least time of the batch where nodes take many stages of one replica.

    It is `seconds` where all runs of stages stand whole; messages between the pieces of others
    cross nodes.
    """
    if not cut_runs(t, plan, work.runs, work.on_nodes, work.cut, work.piece):
        return seconds
    work.there.number[0] = 0
    for k in range(plan.number[0]):
        cut = work.cut[k]
        if cut < plan.replicas[k]:
            add_placed(t, plan, k, plan.replicas[k] - cut, 1, t.node_gpus, work)
        if cut:
            add_placed(t, plan, k, cut, 1, work.piece[k], work)
    return there_seconds(t, work, limit_s)


@jit
def add_placed(
    t: Tables, plan: UnplacedPlan, k: int, replicas: int, copies: int, most: Ints, work: Workspace
) -> None:
    """Replicas of slot `k`, so many copies of their stages beside each other on so many GPUs."""
    there = work.there
    row = there.number[0]
    there.number[0] = row + 1
    f = plan.chosen[k]
    size, last = plan.size[k, f], plan.most[k, f]
    fixed_seconds(t, plan.options[k], plan.depth[k], size, copies, most, work.fixed_s)
    tau_s, sum_s = split_seconds(t, plan, k, plan.blocks[k, f], size, last, work.fixed_s)
    there.replicas[row] = replicas
    there.filling_count[row, 0] = 1
    there.size[row, 0] = size
    there.most[row, 0] = last
    there.tau_s[row, 0] = tau_s
    there.sum_s[row, 0] = sum_s


@inlined
def there_seconds(t: Tables, work: Workspace, limit_s: float) -> float:
    """The least time in which placed replicas train the batch; infinite beyond the limit."""
    if limit_s < math.inf and choose(t.sizes, work.there, limit_s, t.batch) < t.batch:
        return math.inf
    return pipeline_seconds(t, work.there)


@inlined
def collectives_seconds(t: Tables, plan: UnplacedPlan, work: Workspace, is_by_stage: bool) -> float:
    """The longest gradient sum, and the longest broadcasts of weights, of any rank."""
    sync_s = sync_seconds(t, plan, work, is_by_stage)
    return sync_s + broadcast_seconds(t, plan, work, is_by_stage) if t.zero else sync_s


@inlined
def placed_seconds(
    t: Tables, plan: UnplacedPlan, work: Workspace, seconds: float, most_s: float
) -> tuple[float, bool]:
    """Seconds that collectives and messages add to pipelines placed the better way.

    What adds more than `most_s` counts as infinite.  Also whether nodes then take one stage of many
    replicas.
    """
    is_by_stage = t.spreads_experts == 1
    sync_s = collectives_seconds(t, plan, work, is_by_stage)
    added_s = sync_s if sync_s <= most_s else math.inf
    if added_s < math.inf and not t.spreads_experts:
        limit_s = seconds + most_s - sync_s
        added_s += by_replica_seconds(t, plan, work, seconds, limit_s) - seconds
    if t.both_ways:
        least_s = sync_s / (t.ring.shape[1] - 1)  # with one ring where all GPUs sent apart
        if least_s <= most_s and least_s < added_s:
            apart_s = collectives_seconds(t, plan, work, t.both_ways == 1)
            limit_s = seconds + min(most_s, added_s) - apart_s
            if limit_s > seconds:
                apart_s += by_stage_seconds(t, plan, work, limit_s) - seconds
                is_by_stage = apart_s < added_s
                added_s = min(added_s, apart_s)
    return added_s, is_by_stage


@jit
def iteration_seconds(t: Tables, plan: UnplacedPlan, work: Workspace, limit_s: float) -> float:
    """Pipelines, gradient sum and optimizer step; infinite if the batch cannot be shared.

    What takes longer than `limit_s` counts as infinite, and is known sooner.  Of a finite time the
    workspace then has the pipelines' part, and whether nodes take one stage of many replicas.
    """
    if limit_s < math.inf and choose(t.sizes, plan, limit_s, t.batch) < t.batch:
        return math.inf
    seconds = pipeline_seconds(t, plan)
    if seconds > limit_s or seconds == math.inf:
        return math.inf
    work.pipelines_s[0] = seconds
    look_at_experts(t, plan, work)
    added_s, is_by_stage = placed_seconds(t, plan, work, seconds, limit_s - seconds)
    work.is_by_stage[0] = is_by_stage
    seconds += added_s
    if seconds > limit_s:
        return math.inf
    seconds += optimizer_seconds(t, plan, work)
    return seconds if seconds <= limit_s else math.inf


@inlined
def nodes_in_use(t: Tables, plan: UnplacedPlan, first: int, last: int) -> int:
    """Nodes of a class that a plan needs, where those options are the TP degrees of the class.

    A TP group takes GPUs of one node.  So the nodes are as many as the larger groups need, or as
    the smaller ones need beside them.
    """
    nodes = 0
    taken = 0
    for option in range(last, first - 1, -1):
        tp = t.option_tp[option]
        before = taken
        for k in range(plan.number[0]):
            for s in range(plan.depth[k]):
                if plan.options[k, s] == option:
                    taken += plan.replicas[k] * tp
        if taken > before:
            room = t.node_gpus[t.option_type[option]] // tp * tp  # of a node
            nodes = max(nodes, -(-taken // room))
    return nodes


@jit
def price_per_hour(t: Tables, plan: UnplacedPlan) -> float:
    """Money for the nodes in use, idle GPUs of a node included."""
    total = 0.0
    first = 0
    for last in range(len(t.option_type)):
        kind = t.option_type[last]
        if last + 1 == len(t.option_type) or t.option_type[last + 1] != kind:
            gpus = nodes_in_use(t, plan, first, last) * t.node_gpus[kind]
            paid = -(-gpus // t.paid_gpus[kind]) * t.paid_gpus[kind]
            total += paid * t.gpu_price[kind]
            first = last + 1
    return total
