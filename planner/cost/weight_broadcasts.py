"""How long owners give their rows of the weights to those who multiply them, with ZeRO 1.

After the update each rank of a set of owners broadcasts what it owns, one after the other.  The
sets are those of `RankMap.owner_sets`; what is counted instead of trained travels in none.
Source: Rajbhandari et al., "ZeRO" (stage 1); a ring broadcast sends each byte once over each link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planner.cost import formulas
from planner.cost.collectives import Messages, in_buckets, seconds_by_rank
from planner.cost.memory import StageSlot, rule_of, slot_of, slot_parameters
from planner.model.shape import ModelShape
from planner.model.tensors import counted_numel
from planner.model.workload import Workload
from planner.plans.ranks import RankMap
from planner.profiles.profile import Profile


def broadcast_messages(workload: Workload, ranks: RankMap) -> Messages:
    """Bytes of weights that each set of at least two owners broadcasts: {(rank, ...): bytes}."""
    messages: Counter[tuple[int, ...]] = Counter()
    weight_bytes = rule_of(workload).weight
    templates = {pipeline.template_index: pipeline.template for pipeline in ranks.pipelines}
    for index, template in templates.items():
        for s, stage in enumerate(template.stages):
            slot = slot_of(template, s, 1)
            dense, experts = spread_parameters(workload.model, slot, stage.layers)
            of_slots, of_experts = ranks.owner_sets(index, s)
            for sets, numel in ((of_slots, dense), (of_experts, experts)):
                for owners in sets if numel else ():
                    if len(owners) > 1:
                        messages[owners] += numel * weight_bytes
    return dict(messages)


def spread_parameters(model: ModelShape, slot: StageSlot, layers: int) -> tuple[int, int]:
    """(parameters besides routed experts, of routed experts) that a rank has of all its owners."""
    dense, experts = slot_parameters(model, slot, layers)
    blocks = slot.blocks(model, layers).get("moe_block", 0)
    return dense - blocks * counted_numel(model), experts


def broadcast_seconds(
    workload: Workload, ranks: RankMap, profile: Profile, nics: Mapping[str, float]
) -> tuple[float, ...]:
    """Broadcasts of weights of each rank, in rank order, in seconds; 0 without ZeRO.

    Each owner of a set sends its part in buckets, and the set waits a latency for each.
    `nics` has the bytes per second of the network cards that are stated, by node.
    """
    if not workload.zero:
        return (0.0,) * len(ranks.seats)
    rule = rule_of(workload)
    sent = {}
    for owners, num_bytes in broadcast_messages(workload, ranks).items():
        factor, of_each = formulas.broadcast_factor(len(owners)), num_bytes / len(owners)
        one = in_buckets(of_each, rule.bucket * rule.weight, factor)
        sent[owners] = one._replace(messages=len(owners) * one.messages)
    return seconds_by_rank(sent, ranks, profile, nics)
