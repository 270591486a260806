"""Which visits of nodes there can be: how busy, at what share of room, with which messages.

A visit is a run of stages on one node.  The GPUs of a node that are busy share its NIC, so a node
with idle GPUs sends faster; its busy GPUs then pay for the idle ones.
Invariant: every second here is at most what `planner.cost.evaluate` finds for any plan, and GPUs by
row are at most the room that there is.
Source: design, section 2 ("The bound").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.cost.memory import boundary_bytes
from planner.estimator.build_tables import Pricing
from planner.estimator.tables import Floats, Ints, Tables
from planner.kernel.visits import Visits
from planner.model.workload import Workload
from planner.placement.node_classes import NodeClass
from planner.profiles.entries import LinkCost
from planner.profiles.profile import Profile

EFFORT = 190  # of classes whose visits are counted: GPUs of a node times TP degrees
EFFORT_OF_CLASS = 25  # that every class of nodes takes of it


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
        for kind in _kinds(index, one, nodes[index], index in counted, bool(profile.rings))
    ]
    ways = [
        (option, number, _port(t, profile, kind, number, option))
        for number, kind in enumerate(kinds)
        for option in np.flatnonzero(t.option_type == kind.index).tolist()
        if t.option_tp[option] <= kind.most
    ]
    ports = sorted({port for _, _, port in ways})
    inside_s = np.array(
        [
            [2 * profile.inside_node(kind.node.gpu_type).seconds(message) for kind in kinds]
            for message in messages
        ]
    )
    crossing_s = np.array(
        [
            [
                [_crossing_s(profile, kinds, one, other, message, inside) for other in ports]
                for one in ports
            ]
            for message, inside in zip(messages, inside_s.tolist(), strict=True)
        ]
    )
    return Visits(
        np.array([option for option, _, _ in ways]),
        np.array([number for _, number, _ in ways]),
        np.array([ports.index(port) for _, _, port in ways]),
        np.array([_room_of(t, kinds[number], option) for option, number, _ in ways]),
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
        node: the class.
        least: busy GPUs.
        most: busy GPUs.
        nodes: of the class.
        is_counted: whether visits have no more stages than the node has room for.
    """

    index: int
    node: NodeClass
    least: int
    most: int
    nodes: int
    is_counted: bool


def _counted_classes(
    t: Tables, pricing: Pricing, profile: Profile, messages: list[int]
) -> set[int]:
    """Classes whose visits are counted: those of the slowest NICs, while it is cheap."""
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


def _kinds(index: int, node: NodeClass, nodes: int, is_counted: bool, shares: bool) -> list[_Kind]:
    """How busy nodes of a class may be: all GPUs, and ever fewer; told apart where it matters."""
    if not is_counted or not shares:
        return [_Kind(index, node, 1, node.gpus, nodes, is_counted)]
    kinds, most = [_Kind(index, node, node.gpus, node.gpus, nodes, is_counted)], node.gpus - 1
    while most > 0:
        least = max(1, (most + 1) // 2)
        kinds.append(_Kind(index, node, least, most, nodes, is_counted=False))
        most = least - 1
    return kinds


def _port(
    t: Tables, profile: Profile, kind: _Kind, number: int, option: int
) -> tuple[int, float, bool]:
    """(kind, ranks that share the NIC, whether another stage fits on the node)."""
    tp = int(t.option_tp[option])
    smallest = int(t.option_tp[t.option_type == kind.index].min())
    share = max(1.0, kind.least / tp) if profile.rings else 1.0
    return number, share, tp + smallest <= kind.most


def _room_of(t: Tables, kind: _Kind, option: int) -> Floats:
    """[O] GPUs by row of room, each busy one with its share of the idle ones of its node."""
    room = np.zeros(len(t.option_tp))
    for row in range(option + 1):
        if t.option_type[row] == t.option_type[option]:
            tp = int(t.option_tp[row])
            idle = kind.node.gpus / kind.most
            if _is_nested(t, row):
                idle = (kind.node.gpus // tp) / (kind.most // tp)
            room[row] = t.option_tp[option] * idle
    return room


def _crossing_s(
    profile: Profile,
    kinds: list[_Kind],
    one: tuple[int, float, bool],
    other: tuple[int, float, bool],
    message: int,
    inside_s: list[float],
) -> float:
    """A message between two ports and back, at least; infinite where there can be none."""
    left, right = kinds[one[0]], kinds[other[0]]
    ends = ((left.node.gpu_type, one[1]), (right.node.gpu_type, other[1]))
    least_s = 2 * _least_message_s(profile, message, ends)
    if left.index == right.index and left.nodes == 1:
        least_s = math.inf
    if one[0] == other[0] and one[2] and other[2] and not left.is_counted:
        least_s = min(least_s, inside_s[one[0]])
    return least_s


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


def nested_room(t: Tables, pricing: Pricing, nodes: tuple[int, ...]) -> Ints:
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
