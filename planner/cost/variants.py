"""The variants of a stage: what it computes again, and how its experts are spread.

Invariant: of the tilings that cut experts into as many parts, only the fastest is a variant.
ETP is at most the GPUs of the largest node; a run of it that leaves a node all the same, as where
nodes have six GPUs, is priced by the slowest link of its ring.
Source: Heddle, section 5.3 (expert tiling EP x ETP x EDP; EP may leave a node, ETP may not).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from planner.cluster.composition import Composition, Node
from planner.cost import formulas
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.model.workload import STAGE_RECOMPUTATIONS, Workload
from planner.profiles.entries import LayerCost
from planner.profiles.profile import Profile

FEW_GPUS = 16


# (workload and profile apart) GPU type, tiling, micro-batch and nodes of an exchange: its seconds
KnownExchanges = dict[object, float]


class Variant(NamedTuple):
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
    nodes: Sequence[Node] | None = None,
    gpus: int | None = None,
    known: KnownExchanges | None = None,
) -> tuple[Variant, ...]:
    """Every variant of a stage of that option (GPU type, TP), those that cut experts least first.

    The stage is thought to stand on `nodes`, largest first; on any if they are not given.  A plan
    may use so many `gpus`; all of them if that is not given.  What is computed becomes `known`.
    """
    is_free = workload.recompute == "auto"
    wanted = STAGE_RECOMPUTATIONS if is_free else (workload.recompute,)
    tilings = [(1, 0)]
    experts = workload.model.experts
    kind, tp = option
    everywhere = largest_first(node for node in composition.nodes if node.gpu_type == kind)
    gpus = composition.gpus if gpus is None else gpus
    if experts is not None and allow_ep:
        smallest = profile.micro_batches(kind)[0]
        largest = 1 << everywhere[0].gpus.bit_length() - 1
        tilings += [
            (ep, etp)
            for ep in _powers(experts.count)
            for etp in _powers(largest)
            if (ep, etp) != (1, tp)
            and experts.ffn % etp == 0
            and ep * etp <= tp * gpus
            and (kind, tp, smallest, ep, etp) in profile.tiles
        ]
    if gpus <= FEW_GPUS:  # all of them: where they sit decides which is fastest
        fastest = [
            (ep, etp)
            for ep, etp in tilings
            if tiling_devices(everywhere, kind, ep * (etp or tp), tp) is not None
        ]
    else:
        sites = (everywhere,) if nodes is None else (nodes, everywhere)
        fastest = _fastest_of_ways(workload, sites, profile, option, tilings, known)
    return tuple(Variant(again, ep, etp) for ep, etp in fastest for again in wanted)


def _fastest_of_ways(
    workload: Workload,
    sites: Sequence[Sequence[Node]],
    profile: Profile,
    option: tuple[str, int],
    tilings: list[tuple[int, int]],
    known: KnownExchanges | None,
) -> list[tuple[int, int]]:
    """Of the tilings that cut experts into as many parts, and so hold as much, the fastest."""
    kind, tp = option
    b = profile.micro_batches(kind)[0]
    best: dict[int, tuple[float, tuple[int, int]]] = {}
    for ep, etp in tilings:
        if (ep, etp) == (1, 0):
            entry = profile.layers.get(("moe_block", kind, tp, b))
            seconds = layer_seconds(entry) if entry else 0.0
        else:
            tiling = Tiling(tp, ep, etp)
            exchanged_s = exchange_seconds(workload, profile, sites, kind, tiling, b, known)
            if exchanged_s is None:
                continue
            exchanged_s *= formulas.exchanged_passes(recomputes_all=False)
            seconds = layer_seconds(profile.tiled_cost(kind, tp, b, ep, etp)) + exchanged_s
        ways = ep * (etp or tp)
        if ways not in best or seconds < best[ways][0]:
            best[ways] = (seconds, (ep, etp))
    return [fastest for _, (_, fastest) in sorted(best.items())]


def _powers(count: int) -> list[int]:
    """Powers of two that divide the number."""
    return [1 << k for k in range(count.bit_length()) if count % (1 << k) == 0]


def layer_seconds(cost: LayerCost) -> float:
    """Both passes of one layer and its TP communication, without recomputation."""
    return cost.forward_s + cost.backward_s + cost.tp_communication_s


def exchange_seconds(
    workload: Workload,
    profile: Profile,
    sites: Sequence[Sequence[Node]],
    gpu_type: str,
    tiling: Tiling,
    micro_batch: int,
    known: KnownExchanges | None = None,
) -> float | None:
    """Communication of the experts of a block in one pass, all GPUs of its nodes at work.

    The first of the sites (nodes of that type, largest first) with enough GPUs is taken, its nodes
    filled one after the other; None if there is none.  What is `known` of nodes alike is taken.
    """
    known = {} if known is None else known
    for nodes in sites:
        devices = tiling_devices(nodes, gpu_type, tiling.ep * tiling.etp, tiling.tp)
        if devices is not None:
            used = nodes[: len({device.node for device in devices})]
            layout = tuple((node.gpus, node.nic_bytes_per_s) for node in used)
            key = gpu_type, tiling, micro_batch, layout
            if key not in known:
                busy = {node.name: node.gpus for node in used}
                known[key] = expert_seconds(workload, profile, tiling, devices, micro_batch, busy)
            return known[key]
    return None


def largest_first(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """In the order in which a tiling takes them."""
    return tuple(sorted(nodes, key=lambda node: (-node.gpus, node.name)))


def tiling_devices(
    nodes: Sequence[Node], gpu_type: str, ways: int, tp: int
) -> tuple[Device, ...] | None:
    """The GPUs of one tiling, nodes filled one after the other; None if there are not enough."""
    devices: list[Device] = []
    wanted = math.lcm(ways, tp)
    for node in nodes:
        devices += [Device(node.name, gpu_type, node.nic_bytes_per_s)] * (node.gpus // tp * tp)
        if len(devices) >= wanted:
            return tuple(devices[:wanted])
    return None
