"""Costs that no placement can undercut: what the proven bound prices with.

Invariant: every second here is at most what `planner.cost.evaluate` finds for any plan.
Source: design, section 2 ("The bound").
"""

from __future__ import annotations

import math

import numpy as np

from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.variants import Variant
from planner.errors import UnprofiledConfiguration
from planner.estimator.build_tables import Pricing
from planner.estimator.tables import Tables
from planner.kernel.bound_pricing import Sums
from planner.model.workload import Workload
from planner.profiles.profile import Profile


def least_sums(t: Tables, pricing: Pricing, profile: Profile, fewest: tuple[int, ...]) -> Sums:
    """How long a stage sums gradients at least, with so many pipelines or more.

    A stage whose node has no room for a GPU of each other pipeline sums over the NIC.
    """
    byte_s = np.zeros((len(fewest), len(t.option_tp)))
    for count, pipelines in enumerate(fewest):
        ring = 2 * (pipelines - 1) / pipelines * (1 - 1e-6)  # whole elements are cut unevenly
        for option, (kind, tp) in enumerate(pricing.options):
            gpus = pricing.classes[t.option_type[option]].gpus
            links = [profile.between_nodes(kind)]
            if tp + pipelines - 1 <= gpus:
                links += [profile.inside_ring(kind, size) for size in range(2, gpus + 1)]
            least = min(1 / link.bandwidth_bytes_per_s for link in links)
            if any(link.points for link in links):  # latency hides in sizes
                least = 0.0
            byte_s[count, option] = ring * t.state_bytes[1] * least
    held = np.where(t.block_numel > 0, t.block_numel, np.inf).min(axis=1)
    return Sums(byte_s * held, byte_s[..., None] * t.ends_numel)


def shortest_step(t: Tables, deepest: int) -> float:
    """Seconds of the optimizer that every plan takes: one stage holds at least L / D_max blocks."""
    blocks = math.ceil(t.layers / deepest)
    held = np.where(t.block_numel > 0, t.block_numel, np.inf).min(axis=1) * blocks
    if t.zero:
        held = held * 0.0
    latency_s, each_s = t.optimizer_s[t.option_type].T
    return float((latency_s + each_s * held).min())


def optimistic(pricing: Pricing, workload: Workload, profile: Profile) -> Tables:
    """The tables with no more communication of experts than any tiling and placement has."""
    t = pricing.tables
    if workload.model.experts is None:
        return t
    block_s = t.block_s.copy()
    for option, (gpu_type, tp) in enumerate(pricing.options):
        speed = pricing.classes[t.option_type[option]].speed_factor
        largest = max(one.gpus for one in pricing.classes if one.gpu_type == gpu_type)
        for index, variant in enumerate(pricing.variants[option]):
            ways = int(t.ways[option, index])
            for size, b in enumerate(t.sizes.tolist()):
                for tiling in _tilings_of(profile, gpu_type, tp, b, ways):
                    seconds = _least_block_s(
                        workload, profile, gpu_type, largest, tiling, variant, b
                    )
                    least_s = min(block_s[option, size, index, 1], seconds / speed)
                    block_s[option, size, index, 1] = least_s
    return t._replace(block_s=block_s)


def _tilings_of(profile: Profile, gpu_type: str, tp: int, b: int, ways: int) -> list[Tiling]:
    """Those that cut experts into so many parts, and so hold as much."""
    found = []
    for ep in range(1, ways + 1):
        if ways % ep == 0:
            try:
                profile.tiled_cost(gpu_type, tp, b, ep, ways // ep)
            except UnprofiledConfiguration:
                continue
            found.append(Tiling(tp, ep, ways // ep))
    return found


def _least_block_s(
    workload: Workload,
    profile: Profile,
    gpu_type: str,
    largest: int,
    tiling: Tiling,
    variant: Variant,
    b: int,
) -> float:
    """A MoE block with each part of its communication where that is cheapest, at speed 1."""
    cost = profile.tiled_cost(gpu_type, tiling.tp, b, tiling.ep, tiling.etp)
    exchanged_s = 0.0
    if not tiling.is_plain:
        for ep, etp in ((tiling.ep, 1), (1, tiling.etp)):
            size = ep * etp
            layouts = [[Device(str(i), gpu_type) for i in range(size)]]
            if size <= largest:
                layouts.append([Device("one", gpu_type)] * size)
            part = Tiling(tiling.tp, ep, etp)
            exchanged_s += min(expert_seconds(workload, profile, part, d, b) for d in layouts)
    seconds = cost.forward_s + cost.backward_s + cost.tp_communication_s
    seconds += cost.recompute_s(variant.recompute)
    return seconds + exchanged_s * (3 if variant.recompute == "full" else 2)
