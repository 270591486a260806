"""How long each rank sums gradients with the other pipelines' holders of the same pieces.

Every pipeline holds every piece once, so each piece is summed over R = number of pipelines; what
differs is who holds it.  Layers and slots are merged into as few messages as there are sets of
holders; this equals a walk over `planner.pieces.holders` (a law test says so) in a tenth of its
time.
Source: design, "Cost"; 2 (R-1)/R is the volume of a ring all-reduce.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from planner.profile import LinkCost, Profile
from planner.ranks import RankMap
from planner.tensors import layer_tensors
from planner.workload import ModelShape

GRADIENT_BYTES = 4  # fp32


def sync_messages(model: ModelShape, ranks: RankMap) -> dict[tuple[int, ...], int]:
    """Bytes of gradients by holders: {(lead rank in pipeline 0, in pipeline 1, ...): bytes}."""
    slots = math.lcm(*(seat.tp for seat in ranks.seats))
    sizes = [_layer_sizes(model, layer) for layer in range(model.layers + 2)]
    messages: Counter[tuple[int, ...]] = Counter()
    bounds = [pipeline.template.layer_bounds() for pipeline in ranks.pipelines]
    cuts = sorted({cut for bound in bounds for cut in bound})
    stages = [0] * len(bounds)
    for start, stop in pairwise(cuts):
        for index, bound in enumerate(bounds):
            while bound[stages[index] + 1] <= start:
                stages[index] += 1
        groups = [p.ranks[stage] for p, stage in zip(ranks.pipelines, stages, strict=True)]
        sharded = sum(sizes[layer][0] for layer in range(start, stop))
        whole = sum(sizes[layer][1] for layer in range(start, stop))
        for slot in range(slots):
            owners = tuple(group[slot * len(group) // slots] for group in groups)
            parameters = sharded // slots + (whole if slot == 0 else 0)
            messages[owners] += parameters * GRADIENT_BYTES
    return dict(messages)


def _layer_sizes(model: ModelShape, layer: int) -> tuple[int, int]:
    tensors = layer_tensors(model, layer)
    return (
        sum(tensor.numel for tensor in tensors if tensor.dim is not None),
        sum(tensor.numel for tensor in tensors if tensor.dim is None),
    )


def sync_seconds(model: ModelShape, ranks: RankMap, profile: Profile) -> tuple[float, ...]:
    """Gradient synchronisation of each rank, in rank order, in seconds.

    A message takes 2 (R-1)/R of its bytes at the rate of the slowest holder, plus the latency.
    Ranks of one node that sync with other nodes share its NIC; inside a node they use its links.
    """
    pipelines = len(ranks.pipelines)
    if pipelines == 1:
        return (0.0,) * len(ranks.seats)
    node = [seat.node for seat in ranks.seats]
    messages = sync_messages(model, ranks)
    crossing = {owners for owners in messages if len({node[rank] for rank in owners}) > 1}
    sharing = Counter(node[rank] for rank in {rank for owners in crossing for rank in owners})
    network = profile.between_nodes()
    seconds = [0.0] * len(node)
    for owners, num_bytes in messages.items():
        if owners in crossing:
            busiest = max(sharing[node[rank]] for rank in owners)
            link = LinkCost(network.latency_s, network.bandwidth_bytes_per_s / busiest)
        else:
            link = profile.inside_node(ranks.seats[owners[0]].gpu_type)
        taken_s = link.seconds(2 * (pipelines - 1) / pipelines * num_bytes)
        for rank in owners:
            seconds[rank] += taken_s
    return tuple(seconds)
