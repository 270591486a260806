"""How long each rank sums gradients with the other pipelines' holders of the same pieces.

Every pipeline holds every piece once, so each piece is summed over R = number of pipelines; what
differs is who holds it.  Layers and slots are merged into as few messages as there are sets of
holders; this equals a walk over `planner.plans.pieces.holders` (a law test says so) in a tenth of
its time.  Routed experts that a plan tiles are summed apart, over all their copies in all
templates.
2 (R-1)/R is the volume of a ring all-reduce.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from planner.cost import formulas
from planner.cost.collectives import Messages, in_buckets, seconds_by_rank
from planner.cost.memory import rule_of
from planner.model.shape import ModelShape
from planner.model.tensors import expert_numel, layer_tensors, tied_numel
from planner.model.workload import Workload
from planner.plans.ranks import RankMap
from planner.profiles.profile import Profile


def sync_messages(
    model: ModelShape, ranks: RankMap, gradient_bytes: int, *, experts: bool = True
) -> Messages:
    """Bytes of gradients by holders: {(lead rank in pipeline 0, in pipeline 1, ...): bytes}.

    Without `experts` routed experts, which are not cut by TP as everything else, are left out.
    """
    slots = math.lcm(*{seat.tp for seat in ranks.seats})
    sizes = [layer_sizes(model, layer, experts=experts) for layer in range(model.layers + 2)]
    messages: Counter[tuple[int, ...]] = Counter()
    for slot in range(slots if model.tied_head else 0):
        messages[_tied_owners(ranks, slot, slots)] += tied_numel(model) // slots * gradient_bytes
    bounds = [pipeline.template.layer_bounds() for pipeline in ranks.pipelines]
    cuts = sorted({cut for bound in set(bounds) for cut in bound})
    stages = [0] * len(bounds)
    for start, stop in pairwise(cuts):
        for index, bound in enumerate(bounds):
            while bound[stages[index] + 1] <= start:
                stages[index] += 1
        groups = [p.ranks[stage] for p, stage in zip(ranks.pipelines, stages, strict=True)]
        sharded = sum(sizes[layer][0] for layer in range(start, stop))
        whole = sum(sizes[layer][1] for layer in range(start, stop))
        for slot in range(slots):
            owners = tuple([group[slot * len(group) // slots] for group in groups])
            parameters = sharded // slots + (whole if slot == 0 else 0)
            messages[owners] += parameters * gradient_bytes
    return dict(messages)


def _tied_owners(ranks: RankMap, slot: int, slots: int) -> tuple[int, ...]:
    """Holders of a slot of the weight that embedding and head share: both ends of each pipeline."""
    ends = [
        group[slot * len(group) // slots]
        for pipeline in ranks.pipelines
        for group in (pipeline.ranks[0], pipeline.ranks[-1])
    ]
    return tuple(dict.fromkeys(ends))  # a pipeline of one stage holds it once


def layer_sizes(model: ModelShape, layer: int, *, experts: bool) -> tuple[int, int]:
    """(elements that TP cuts, elements that it leaves whole) of a layer; routed experts or not.

    A weight that embedding and head share is left out.
    """
    tensors = layer_tensors(model, layer)
    routed = 0 if experts or model.kind(layer) != "moe_block" else expert_numel(model)
    tied = tied_numel(model) if layer == 0 else 0
    return (
        sum(tensor.numel for tensor in tensors if tensor.dim is not None) - routed - tied,
        sum(tensor.numel for tensor in tensors if tensor.dim is None),
    )


def _expert_messages(model: ModelShape, ranks: RankMap, gradient_bytes: int) -> Messages:
    """Bytes of routed experts by all ranks, of any template, that hold the same ones."""
    templates = {pipeline.template_index: pipeline.template for pipeline in ranks.pipelines}
    messages: Counter[tuple[int, ...]] = Counter()
    bounds = {index: template.layer_bounds() for index, template in templates.items()}
    alike = Counter(  # blocks that the same stages hold have the same holders
        tuple(bisect_right(cuts, layer) - 1 for cuts in bounds.values())
        for layer in range(1, model.layers + 1)
        if model.kind(layer) == "moe_block"
    )
    for chosen, blocks in alike.items():
        held = []  # by template: EP, ETP, and the stage's devices over all replicas
        for (index, template), s in zip(templates.items(), chosen, strict=True):
            stage = template.stages[s]
            held.append((stage.ep, stage.expert_tp, ranks.stage_ranks(index, s)))
        groups = math.lcm(*(ep for ep, _, _ in held))
        slices = math.lcm(*(etp for _, etp, _ in held))
        num_bytes = blocks * (expert_numel(model) // (groups * slices)) * gradient_bytes
        for group in range(groups):
            for part in range(slices):
                owners: tuple[int, ...] = ()
                for ep, etp, devices in held:
                    first = group * ep // groups * etp + part * etp // slices
                    owners += tuple(devices[first :: ep * etp])
                if len(owners) > 1:
                    messages[owners] += num_bytes
    return dict(messages)


def sync_seconds(
    workload: Workload, ranks: RankMap, profile: Profile, nics: Mapping[str, float]
) -> tuple[float, ...]:
    """Gradient synchronisation of each rank, in rank order, in seconds.

    A bucket takes 2 (R-1)/R of its bytes at the rate of the slowest holder, plus the latency; see
    `planner.cost.collectives`.  `nics` has the bytes per second of the network cards that are
    stated, by node.
    """
    tiled = any(pipeline.template.is_tiled for pipeline in ranks.pipelines)
    if len(ranks.pipelines) == 1 and not tiled and not workload.model.tied_head:
        return (0.0,) * len(ranks.seats)
    rule = rule_of(workload)
    gradient_bytes = rule.gradient
    messages = sync_messages(workload.model, ranks, gradient_bytes, experts=not tiled)
    if tiled:
        experts = _expert_messages(workload.model, ranks, gradient_bytes)
        messages = dict(Counter(messages) + Counter(experts))
    sent = {
        owners: in_buckets(
            num_bytes, rule.bucket * gradient_bytes, formulas.ring_factor(len(owners))
        )
        for owners, num_bytes in messages.items()
    }
    return seconds_by_rank(sent, ranks, profile, nics)
