"""Costs that no placement can undercut: what the proven bound prices with.

Invariant: every second here is at most what `planner.cost` finds for any plan.
Source: design, section 2 ("The bound").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.entries import LinkCost
from planner.errors import UnprofiledConfiguration
from planner.expert_parallel import Device, Tiling, expert_seconds
from planner.kernel.bound_pricing import Sums
from planner.kernel.tables import Floats, Tables
from planner.kernel.visits import Visits
from planner.memory import boundary_bytes
from planner.pricing_tables import Pricing
from planner.profile import Profile
from planner.variants import Variant
from planner.workload import Workload


EFFORT = 48  # of classes whose visits are counted: GPUs of a node times TP degrees
EFFORT_OF_CLASS = 4  # that every class of nodes takes of it


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


def visits_of(
    t: Tables, pricing: Pricing, workload: Workload, profile: Profile, nodes: tuple[int, ...]
) -> Visits:
    """All ways to use an option, and the cheapest messages that they can have.

    Args:
        t: of the pricing.
        pricing: supplies classes of nodes and options.
        workload: supplies the size of an activation.
        profile: supplies the links.
        nodes: of each class.
    """
    messages = [boundary_bytes(workload, b) for b in t.sizes.tolist()]
    counted = _counted_classes(t, pricing, profile, messages)
    kinds = [
        kind
        for index, one in enumerate(pricing.classes)
        for kind in _kinds(index, one.gpus, nodes[index], index in counted, bool(profile.rings))
    ]
    ways = []
    for number, kind in enumerate(kinds):
        options = np.flatnonzero(t.option_type == kind.index).tolist()
        for option in options:
            tp = int(t.option_tp[option])
            share = max(1.0, kind.least / tp) if profile.rings else 1.0
            stays = tp + int(t.option_tp[options[0]]) <= kind.most
            if tp <= kind.most:
                ways.append((option, number, (number, share, stays)))
    ports = sorted({port for _, _, port in ways})
    room = np.zeros((len(ways), len(t.option_tp)))
    for way, (option, number, _) in enumerate(ways):
        node_gpus = pricing.classes[kinds[number].index].gpus
        for row in range(option + 1):
            if t.option_type[row] == t.option_type[option]:
                tp = int(t.option_tp[row])
                most = kinds[number].most
                idle = node_gpus / most
                if _is_nested(t, row):
                    idle = (node_gpus // tp) / (most // tp)
                room[way, row] = t.option_tp[option] * idle
    types = [pricing.classes[kind.index].gpu_type for kind in kinds]
    crossing_s = np.zeros((len(messages), len(ports), len(ports)))
    inside_s = np.zeros((len(messages), len(kinds)))
    for size, message in enumerate(messages):
        for number, name in enumerate(types):
            inside_s[size, number] = 2 * profile.inside_node(name).seconds(message)
        for i, (one, share, stays) in enumerate(ports):
            for j, (other, others_share, others_stay) in enumerate(ports):
                alone = kinds[one].index == kinds[other].index and kinds[one].nodes == 1
                crossing_s[size, i, j] = (
                    math.inf
                    if alone
                    else 2
                    * _least_message_s(
                        profile, message, ((types[one], share), (types[other], others_share))
                    )
                )
                if one == other and stays and others_stay and not kinds[one].is_counted:
                    crossing_s[size, i, j] = min(crossing_s[size, i, j], inside_s[size, one])
    return Visits(
        np.array([option for option, _, _ in ways]),
        np.array([number for _, number, _ in ways]),
        np.array([ports.index(port) for _, _, port in ways]),
        room,
        np.array([kind.most if kind.is_counted else 0 for kind in kinds]),
        crossing_s,
        inside_s,
        crossing_s.min(axis=2),
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """Nodes of a class on which so many GPUs are busy.

    Attributes:
        index: of the class.
        least: busy GPUs.
        most: busy GPUs.
        nodes: of the class.
        is_counted: whether visits have no more stages than the node has room for.
    """

    index: int
    least: int
    most: int
    nodes: int
    is_counted: bool


def _counted_classes(
    t: Tables, pricing: Pricing, profile: Profile, messages: list[int]
) -> set[int]:
    """Classes whose messages inside nodes are told apart: the slowest NICs first, while it is cheap."""
    slowness = {}
    for index, one in enumerate(pricing.classes):
        lowest = int(np.flatnonzero(t.option_type == index)[0])
        block_s = t.block_s[lowest, :, :, 1].min(axis=1)
        nic = profile.between_nodes(one.gpu_type)
        if one.gpus > 1:
            each = (nic.seconds(m) / s for m, s in zip(messages, block_s, strict=True))
            slowness[index] = min(each) / one.gpus
    found = set()
    left = EFFORT - EFFORT_OF_CLASS * len(pricing.classes)
    for index in sorted(slowness, key=lambda index: (-slowness[index], index)):
        effort = pricing.classes[index].gpus * int((t.option_type == index).sum())
        if effort <= left:
            found.add(index)
            left -= effort
    return found


def _kinds(index: int, gpus: int, nodes: int, is_counted: bool, shares: bool) -> list[_Kind]:
    """How busy nodes of a class may be: all GPUs, and ever fewer; told apart where it matters."""
    if not is_counted or not shares:
        return [_Kind(index, 1, gpus, nodes, is_counted)]
    kinds, most = [_Kind(index, gpus, gpus, nodes, is_counted)], gpus - 1
    while most > 0:
        least = max(1, (most + 1) // 2)
        kinds.append(_Kind(index, least, most, nodes, is_counted=False))
        most = least - 1
    return kinds


def _least_message_s(profile: Profile, message: int, ends: tuple[tuple[str, float], ...]) -> float:
    """A message between nodes at most as fast as the slower of two NICs, each so shared at least.

    Where links are measured by size, either may be the slower one, and larger may be faster.
    """
    if not profile.rings:
        return _least_seconds(profile.between_nodes(*(name for name, _ in ends)), message)
    links = [profile.between_nodes(name).shared_by(share) for name, share in ends]
    if any(link.points for link in links):
        return min(_least_seconds(link, message) for link in links)
    rate = min(link.bandwidth_bytes_per_s for link in links)
    return min(link.latency_s for link in links) + message / rate


def _least_seconds(link: LinkCost, num_bytes: float) -> float:
    """Of messages of that size and of all larger ones."""
    larger = (seconds for size, seconds in link.points if size >= num_bytes)
    return min((link.seconds(num_bytes), *larger))


def nested_room(t: Tables, pricing: Pricing, nodes: tuple[int, ...]) -> Floats:
    """[O] GPUs by row; without what only holds where larger degrees are multiples of smaller."""
    room = t.room.copy()
    for option, kind in enumerate(t.option_type):
        if not _is_nested(t, option):
            room[option] = nodes[kind] * pricing.classes[kind].gpus
    return room


def _is_nested(t: Tables, option: int) -> bool:
    """Whether all larger TP degrees of its class are multiples of its own."""
    own = (t.option_type == t.option_type[option]) & (t.option_tp >= t.option_tp[option])
    return not (t.option_tp[own] % t.option_tp[option]).any()


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
