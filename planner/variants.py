"""The variants of a stage: what it computes again, and how its experts are spread.

Invariant: of the tilings that cut experts into as many parts, only the fastest is a variant.
Source: Heddle, section 5.3 (expert tiling EP x ETP x EDP; EP may leave a node, ETP may not).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.composition import Composition
from planner.entries import LayerCost
from planner.expert_parallel import Device, Tiling, expert_seconds
from planner.profile import Profile
from planner.workload import STAGE_RECOMPUTATIONS, Workload

FEW_GPUS = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """How a stage recomputes and spreads its experts."""

    recompute: str
    ep: int = 1
    etp: int = 0


def variants_of(
    workload: Workload,
    composition: Composition,
    profile: Profile,
    option: tuple[str, int],
    allow_ep: bool,
    nodes: Composition | None = None,
) -> tuple[Variant, ...]:
    """Every variant of a stage of that option, those that cut experts least first.

    Args:
        workload: model and recomputation.
        composition: all nodes.
        profile: supplies all costs.
        option: GPU type and TP degree.
        allow_ep: whether experts may be spread.
        nodes: those that the stage is thought to stand on; all if not given.
    """
    wanted: tuple[str, ...] = (workload.recompute,)
    if workload.recompute == "auto":
        wanted = STAGE_RECOMPUTATIONS
    tilings = [(1, 0)]
    experts = workload.model.experts
    kind, tp = option
    if experts is not None and allow_ep:
        smallest = profile.micro_batches(kind)[0]
        largest = 1 << max(n.gpus for n in composition.nodes if n.gpu_type == kind).bit_length() - 1
        tilings += [
            (ep, etp)
            for ep in _powers(experts.count)
            for etp in _powers(largest)
            if (ep, etp) != (1, tp)
            and experts.ffn % etp == 0
            and ep * etp <= tp * composition.gpus
            and (kind, tp, smallest, ep, etp) in profile.tiles
        ]
    sites = (composition,) if nodes is None else (nodes, composition)
    fastest = _fastest_of_ways(workload, sites, profile, option, tilings)
    return tuple(Variant(again, ep, etp) for ep, etp in fastest for again in wanted)


def _fastest_of_ways(
    workload: Workload,
    sites: Sequence[Composition],
    profile: Profile,
    option: tuple[str, int],
    tilings: list[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Of the tilings that cut experts into as many parts, and so hold as much, the fastest.

    On a few GPUs all of them: where they sit decides which is fastest.
    """
    kind, tp = option
    if sites[-1].gpus <= FEW_GPUS:
        return [
            (ep, etp)
            for ep, etp in tilings
            if tiling_devices(sites[-1], kind, ep * (etp or tp), tp) is not None
        ]
    b = profile.micro_batches(kind)[0]
    best: dict[int, tuple[float, tuple[int, int]]] = {}
    for ep, etp in tilings:
        if (ep, etp) == (1, 0):
            entry = profile.layers.get(("moe_block", kind, tp, b))
            seconds = layer_seconds(entry) if entry else 0.0
        else:
            exchanged_s = exchange_seconds(workload, profile, sites, kind, Tiling(tp, ep, etp), b)
            if exchanged_s is None:
                continue
            seconds = layer_seconds(profile.tiled_cost(kind, tp, b, ep, etp)) + 2 * exchanged_s
        ways = ep * (etp or tp)
        if ways not in best or seconds < best[ways][0]:
            best[ways] = (seconds, (ep, etp))
    return [tiling for _, (_, tiling) in sorted(best.items())]


def _powers(count: int) -> list[int]:
    """Powers of two that divide the number."""
    found = [1]
    while count % (2 * found[-1]) == 0:
        found.append(2 * found[-1])
    return found


def layer_seconds(cost: LayerCost) -> float:
    """Both passes of one layer and its TP communication, without recomputation."""
    return cost.forward_s + cost.backward_s + cost.tp_communication_s


def exchange_seconds(
    workload: Workload,
    profile: Profile,
    sites: Sequence[Composition],
    gpu_type: str,
    tiling: Tiling,
    micro_batch: int,
) -> float | None:
    """Communication of the experts of a block in one pass, all GPUs of its nodes at work.

    Args:
        workload: model with experts.
        profile: its links.
        sites: nodes; the first that have enough GPUs are taken, filled one after the other.
        gpu_type: of the stage.
        tiling: of its experts.
        micro_batch: b.

    Returns:
        None if there are too few GPUs.
    """
    for nodes in sites:
        devices = tiling_devices(nodes, gpu_type, tiling.ep * tiling.etp, tiling.tp)
        if devices is not None:
            busy = {node.name: node.gpus for node in nodes.nodes}
            return expert_seconds(workload, profile, tiling, devices, micro_batch, busy)
    return None


def tiling_devices(
    composition: Composition, gpu_type: str, ways: int, tp: int
) -> tuple[Device, ...] | None:
    """The GPUs of one tiling, nodes filled one after the other; None if there are not enough."""
    devices: list[Device] = []
    nodes = sorted(
        (node for node in composition.nodes if node.gpu_type == gpu_type),
        key=lambda node: (-node.gpus, node.name),
    )
    wanted = math.lcm(ways, tp)
    for node in nodes:
        devices += [Device(node.name, gpu_type)] * (node.gpus // tp * tp)
        if len(devices) >= wanted:
            return tuple(devices[:wanted])
    return None
