"""Seconds of the gradient sum of a plan, and of its broadcasts of weights, before it is placed.

Invariant: exact where every GPU has a node of its own; elsewhere rings share NICs as `nic_share`
thinks.
Source: `planner.cost.gradient_sync` and `planner.cost.weight_broadcasts`, of placed plans.
Legend: K templates, T node classes.
"""

from __future__ import annotations

from planner.estimator import rules
from planner.estimator.fill.stage import parameters_of
from planner.estimator.fill.stage_experts import has_experts
from planner.estimator.jit import inlined, jit
from planner.estimator.nic_share import nic_seconds, stage_nic_seconds
from planner.estimator.tables import Tables
from planner.estimator.unplaced_plan import UnplacedPlan, pipelines_of
from planner.estimator.workspace import Workspace

WHOLE, CUT, WAIT, EXPERTS, BYTE, MESSAGE, PART = range(7)  # rows of `Workspace.summed_s`


@jit
def sync_seconds(t: Tables, plan: UnplacedPlan, work: Workspace, is_by_stage: bool) -> float:
    """The largest gradient sum of any rank, as `planner.cost.gradient_sync` with all nodes full.

    One walk over the layers, all templates side by side: between two cuts of any of them the
    holders of a layer stay the same.  A part of its experts is summed over those who hold it, in
    all templates.
    """
    pipelines = pipelines_of(plan)
    if pipelines == 1 and t.tied_bytes == 0.0:
        return 0.0
    ring = rules.ring_factor(float(pipelines))
    number = plan.number[0]
    if not is_by_stage:
        nic_seconds(t, plan, work.held, work.nic_s)
    at, stop = work.at[0], work.at[1]
    summed_s = work.summed_s
    whole_s, cut_s, wait_s, experts_s = (
        summed_s[WHOLE],
        summed_s[CUT],
        summed_s[WAIT],
        summed_s[EXPERTS],
    )
    byte_s, latency_s, part = summed_s[BYTE], summed_s[MESSAGE], summed_s[PART]
    for j in range(number):
        at[j] = -1
        stop[j] = 0
    bucket_bytes = t.bucket_numel * t.state_bytes[1]
    tied_s, tied_wait_s, tied_cut = tied_seconds(t, plan, work, is_by_stage)
    worst_s = 0.0
    layer = until = 0
    while layer <= t.layers + 1:
        for j in range(number):
            if until >= stop[j]:
                begin_stage(t, plan, work, j, pipelines, is_by_stage)
        until = t.layers + 1
        per_byte = 0.0
        latency = 0.0
        finest = 1.0
        for j in range(number):
            per_byte = max(per_byte, byte_s[j])
            latency = max(latency, latency_s[j])
            finest = min(finest, part[j])
            until = min(until, stop[j])
        whole = 0.0
        cut = 0.0
        for one in range(layer, until + 1):
            whole += t.whole_bytes[one]
            cut += t.sharded_bytes[one]
        if layer == 0:
            cut += tied_cut
        if has_experts(t):
            add_experts(t, plan, work, layer, until, per_byte, latency / bucket_bytes)
        layer = until + 1
        first = rules.bucket_messages(whole + cut * finest, bucket_bytes)  # with all that is whole
        others = rules.bucket_messages(cut * finest, bucket_bytes)
        for j in range(number):
            whole_s[j] += whole * per_byte
            cut_s[j] += cut * per_byte
            if pipelines > 1:
                wait_s[j] += latency * (first - others + others * part[j] / finest)
            if until == stop[j]:
                seconds = ring * (whole_s[j] + cut_s[j] * part[j]) + wait_s[j] + experts_s[j]
                if at[j] == 0 or at[j] == plan.depth[j] - 1:
                    seconds += tied_s * part[j] + tied_wait_s * part[j]
                worst_s = max(worst_s, seconds)
    return worst_s


@inlined
def begin_stage(
    t: Tables, plan: UnplacedPlan, work: Workspace, j: int, pipelines: int, is_by_stage: bool
) -> None:
    """Go on to the next stage of a template, for which nothing is summed yet."""
    at, stop = work.at[0], work.at[1]
    at[j] += 1
    s = at[j]
    option = plan.options[j, s]
    is_inside = sums_inside(t, plan, j, option, is_by_stage)
    latency_s, byte_s = ring_line(t, plan, work, j, s, pipelines, is_inside, is_by_stage)
    for row in (WHOLE, CUT, WAIT, EXPERTS):
        work.summed_s[row, j] = 0.0
    work.summed_s[BYTE, j] = byte_s
    work.summed_s[MESSAGE, j] = latency_s
    work.summed_s[PART, j] = 1.0 / t.option_tp[option]
    stop[j] += plan.blocks[j, plan.chosen[j], s]
    if s == plan.depth[j] - 1:
        stop[j] = t.layers + 1


@jit
def tied_seconds(
    t: Tables, plan: UnplacedPlan, work: Workspace, is_by_stage: bool
) -> tuple[float, float, float]:
    """Sum of the weight that embedding and head share, over both ends of every pipeline.

    Returns:
        Seconds of the whole weight, of which a TP rank takes its part; seconds of waiting, of which
        it does too; bytes that are summed with the layers instead, where no stage has one end only.
    """
    holders = 0.0
    alone = True
    per_byte = 0.0
    latency = 0.0
    finest = 1.0
    if t.tied_bytes == 0.0:
        return 0.0, 0.0, 0.0
    for j in range(plan.number[0]):
        ends = 1 if plan.depth[j] == 1 else 2
        holders += ends * plan.replicas[j]
        alone = alone and ends == 1
        for end in range(ends):
            s = end * (plan.depth[j] - 1)
            option = plan.options[j, s]
            finest = min(finest, 1.0 / t.option_tp[option])
            waits_s, one_s = ring_line(
                t, plan, work, j, s, 2 * plan.replicas[j], t.stays_inside == 1, is_by_stage
            )
            per_byte = max(per_byte, one_s)
            latency = max(latency, waits_s)
    if alone:
        return 0.0, 0.0, t.tied_bytes
    sent_s = rules.ring_factor(holders) * t.tied_bytes * per_byte
    bucket_bytes = t.bucket_numel * t.state_bytes[1]
    messages = rules.bucket_messages(t.tied_bytes * finest, bucket_bytes)
    return sent_s, latency * messages / finest, 0.0


@inlined
def sums_inside(t: Tables, plan: UnplacedPlan, k: int, option: int, is_by_stage: bool) -> bool:
    """Whether all replicas of a stage stand on one node, so that no gradient leaves it."""
    alone = is_by_stage and plan.number[0] == 1
    return t.stays_inside == 1 or (alone and fits_one_node(t, option, plan.replicas[k]))


@inlined
def fits_one_node(t: Tables, option: int, replicas: int) -> bool:
    """Whether nodes that take one stage of many replicas each hold all replicas of it."""
    groups = t.node_gpus[t.option_type[option]] // t.option_tp[option]  # of a node
    return groups % replicas == 0


@inlined
def ring_line(
    t: Tables,
    plan: UnplacedPlan,
    work: Workspace,
    k: int,
    s: int,
    members: int,
    is_inside: bool,
    is_by_stage: bool,
) -> tuple[float, float]:
    """Seconds of a message, and of a byte, in a ring of ranks of a stage and of its like."""
    option = plan.options[k, s]
    kind = t.option_type[option]
    latency_s, byte_s = t.nic[kind, 0], work.nic_s[kind]
    if is_inside:
        inside = min(members, t.node_gpus[kind])
        latency_s, byte_s = t.ring[kind, inside, 0], t.ring[kind, inside, 1]
    elif is_by_stage:
        ways = work.ways[k, s] if t.spreads_experts else t.option_tp[option]
        byte_s = stage_nic_seconds(t, option, plan.replicas[k], ways)
        beside = min(members, t.node_gpus[kind] // t.option_tp[option])
        if beside > 1:
            byte_s = max(byte_s, t.ring[kind, beside, 1])
    return latency_s, byte_s


@inlined
def add_experts(
    t: Tables,
    plan: UnplacedPlan,
    work: Workspace,
    layer: int,
    until: int,
    per_byte: float,
    wait_per_byte: float,
) -> None:
    """Add what the experts of these layers take to the sum of each template's stage.

    They wait `wait_per_byte` for buckets of their own.
    """
    at, experts_s = work.at[0], work.summed_s[EXPERTS]
    blocks = min(until, t.layers) - max(layer, t.dense + 1) + 1
    if blocks > 0:
        copies = 0.0
        for j in range(plan.number[0]):
            tp = t.option_tp[plan.options[j, at[j]]]
            copies += plan.replicas[j] * tp / work.ways[j, at[j]]
        sent_s = blocks * t.state_bytes[1]
        sent_s *= rules.ring_factor(max(1.0, copies)) * per_byte + (copies > 1) * wait_per_byte
        for j in range(plan.number[0]):
            experts_s[j] += sent_s * work.numel[j, at[j]]


@inlined
def owners_messages(t: Tables, numel: float, owners: int) -> int:
    """Messages of all owners, each of which sends its part of so many parameters in buckets."""
    return owners * rules.bucket_messages(numel / owners, t.bucket_numel)


@jit
def broadcast_seconds(t: Tables, plan: UnplacedPlan, work: Workspace, is_by_stage: bool) -> float:
    """The longest broadcasts of owners' weights, as `planner.cost.weight_broadcasts` with ZeRO 1.

    To be asked after `sync_seconds`, which knows how many rings share a NIC.
    """
    longest_s = 0.0
    for k in range(plan.number[0] if t.zero else 0):
        replicas = plan.replicas[k]
        start = 0
        for s in range(plan.depth[k] if replicas > 1 else 0):
            option = plan.options[k, s]
            tp = t.option_tp[option]
            stop = start + plan.blocks[k, plan.chosen[k], s]
            dense = min(stop, t.dense) - min(start, t.dense)
            others = stop - start - dense
            start = stop
            numel = parameters_of(t, option, s == 0, s == plan.depth[k] - 1, dense, others)
            numel = rules.broadcast_factor(replicas) * (numel - others * t.counted_numel)
            spread_numel, messages = 0.0, 0  # of experts with owners of their own
            if has_experts(t) and others:
                ways = work.ways[k, s]
                copies = replicas * tp // ways  # ranks that hold the same experts
                held_numel = rules.broadcast_factor(copies) * others * work.numel[k, s]
                if ways == tp:
                    numel += held_numel
                elif copies > 1:
                    spread_numel = held_numel
                    messages = owners_messages(t, spread_numel, copies)
            messages += owners_messages(t, numel, replicas)
            numel += spread_numel
            inside = t.stays_inside == 1 or (is_by_stage and fits_one_node(t, option, replicas))
            latency_s, byte_s = ring_line(t, plan, work, k, s, replicas, inside, is_by_stage)
            longest_s = max(longest_s, numel * t.state_bytes[0] * byte_s + messages * latency_s)
    return longest_s
