"""Fill the kernel's tables from a profile.

Invariant: entries are the profile's own; a GPU type counts with its fastest node.
Source: design, section 2 ("One kernel").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.composition import Composition
from planner.entries import LayerCost
from planner.errors import UnprofiledConfiguration
from planner.expert_parallel import Device, Tiling, expert_seconds
from planner.kernel.tables import Tables
from planner.memory import (
    BUCKET_ELEMENTS,
    LOGIT_BYTES,
    STATE_BYTES,
    STEP_BYTES,
    boundary_bytes,
)
from planner.placement import room_of
from planner.profile import Profile
from planner.tensors import expert_numel, layer_numel, layer_tensors
from planner.workload import RECOMPUTATIONS, Workload

MAX_TILINGS = 10  # of one option, the fastest and the smallest ones


@dataclass(frozen=True, slots=True)
class Variant:
    """How a stage recomputes and spreads its experts."""

    recompute: str
    ep: int = 1
    etp: int = 0


@dataclass(frozen=True, slots=True)
class Pricing:
    """The kernel's tables with the names behind their indices.

    Attributes:
        tables: for the kernel.
        types: T GPU types.
        options: O pairs (GPU type, TP degree), by type and TP ascending.
        variants: for each option its variants.
    """

    tables: Tables
    types: tuple[str, ...]
    options: tuple[tuple[str, int], ...]
    variants: tuple[tuple[Variant, ...], ...]


def pricing_of(
    workload: Workload,
    composition: Composition,
    profile: Profile,
    *,
    min_replicas: int = 1,
    allow_ep: bool = True,
) -> Pricing | None:
    """Tables for one workload on one composition; None if no option is profiled.

    Args:
        workload: what is trained.
        composition: its nodes are of profiled types.
        profile: supplies all costs.
        min_replicas: so many pipelines at least.
        allow_ep: whether experts may be spread over the replicas of a template.
    """
    model = workload.model
    largest: dict[str, int] = {}
    speed: dict[str, float] = {}
    for node in composition.nodes:
        largest[node.gpu_type] = max(largest.get(node.gpu_type, 0), node.gpus)
        speed[node.gpu_type] = max(speed.get(node.gpu_type, 0.0), node.speed_factor)
    types = tuple(sorted(largest))
    options = tuple(
        (kind, tp)
        for kind in types
        for tp in profile.tp_degrees(kind)
        if tp <= largest[kind] and model.allows_tp(tp)
    )
    sizes = sorted(
        {b for kind in types for b in profile.micro_batches(kind) if b <= workload.global_batch}
    )
    if not options or not sizes:
        return None
    variants = tuple(
        _variants(workload, composition, profile, option, allow_ep) for option in options
    )
    arrays = _Arrays(workload, profile, types, options, sizes, variants, composition)
    room = room_of(composition)
    prices = _gpu_prices(composition)
    gradient = STATE_BYTES[workload.precision][1]
    shapes = [_gradient_sizes(workload, layer) for layer in range(model.layers + 2)]
    tables = Tables(
        batch=workload.global_batch,
        layers=model.layers,
        dense=model.experts.dense_blocks if model.experts else 0,
        zero=workload.zero,
        option_type=np.array([types.index(kind) for kind, _ in options]),
        option_tp=np.array([tp for _, tp in options]),
        room=np.array([room.get(option, 0) for option in options]),
        node_gpus=np.array([largest[kind] for kind in types]),
        gpu_price=np.array([prices.get(kind, 0.0) for kind in types]),
        sizes=np.array(sizes),
        variants=np.array([len(row) for row in variants]),
        ways=arrays.ways,
        block_s=arrays.block_s / _by_option(arrays, speed),
        ends_s=arrays.ends_s / _by_option(arrays, speed)[..., 0],
        crossing_s=_crossing(workload, profile, types, sizes),
        inside_s=np.array(
            [
                [2 * profile.inside_node(kind).seconds(boundary_bytes(workload, b)) for b in sizes]
                for kind in types
            ]
        ),
        kept_bytes=arrays.kept_bytes,
        kept_ends_bytes=arrays.kept_ends_bytes,
        working_bytes=arrays.working_bytes,
        logits_bytes=np.array(
            [
                [
                    float(b * workload.sequence_length * model.padded_vocab // tp * LOGIT_BYTES)
                    for b in sizes
                ]
                for _, tp in options
            ]
        ),
        boundary_bytes=np.array(
            [
                [
                    float(
                        boundary_bytes(workload, b) // (tp if workload.sequence_parallel else 1)
                    )
                    for b in sizes
                ]
                for _, tp in options
            ]
        ),
        block_numel=arrays.block_numel,
        expert_numel=arrays.expert_numel,
        ends_numel=np.array(
            [
                [float(layer_numel(model, layer, tp)) for layer in (0, model.layers + 1)]
                for _, tp in options
            ]
        ),
        state_bytes=np.array(
            [float(n) for n in (*STATE_BYTES[workload.precision], STEP_BYTES[workload.precision])]
        ),
        bucket_numel=math.inf if workload.precision == "fp32" else float(BUCKET_ELEMENTS),
        usable_bytes=np.array([float(profile.gpu_type(kind).usable_bytes) for kind in types]),
        optimizer_s=np.array(
            [
                [
                    profile.gpu_type(kind).optimizer_latency_s / speed[kind],
                    profile.gpu_type(kind).optimizer_s_per_parameter / speed[kind],
                ]
                for kind in types
            ]
        ),
        sharded_bytes=np.array([float(cut * gradient) for cut, _ in shapes]),
        whole_bytes=np.array([float(whole * gradient) for _, whole in shapes]),
        nic=np.array(
            [
                [
                    profile.between_nodes(kind).latency_s,
                    largest[kind] / profile.between_nodes(kind).bandwidth_bytes_per_s,
                ]
                for kind in types
            ]
        ),
        min_replicas=min_replicas,
    )
    return Pricing(tables, types, options, variants)


def _gradient_sizes(workload: Workload, layer: int) -> tuple[int, int]:
    """(elements that TP cuts, elements that it leaves whole) of a layer."""
    tensors = layer_tensors(workload.model, layer)
    return (
        sum(tensor.numel for tensor in tensors if tensor.dim is not None),
        sum(tensor.numel for tensor in tensors if tensor.dim is None),
    )


def _gpu_prices(composition: Composition) -> dict[str, float]:
    """Money per GPU and hour by type, where nodes state a price: the cheapest node's."""
    prices: dict[str, float] = {}
    for node in composition.nodes:
        price = getattr(node, "price", None)
        if price is not None:
            one = price / node.gpus
            prices[node.gpu_type] = min(prices.get(node.gpu_type, one), one)
    return prices


def _variants(
    workload: Workload,
    composition: Composition,
    profile: Profile,
    option: tuple[str, int],
    allow_ep: bool,
) -> tuple[Variant, ...]:
    wanted: tuple[str, ...] = (workload.recompute,)
    if workload.recompute == "auto":
        wanted = RECOMPUTATIONS
    tilings = [(1, 0)]
    experts = workload.model.experts
    kind, tp = option
    if experts is not None and allow_ep:
        tilings += [
            (ep, etp)
            for ep in _powers(experts.count)
            for etp in sorted({1, tp})
            if (ep, etp) != (1, tp)
            and experts.ffn % etp == 0
            and ep * etp <= tp * composition.gpus
            and any(
                (kind, tp, b, ep, etp) in profile.tiles for b in profile.micro_batches(kind)
            )
        ]
    return tuple(Variant(again, ep, etp) for ep, etp in tilings for again in wanted)


def _powers(count: int) -> list[int]:
    """Powers of two that divide the number."""
    found = [1]
    while count % (2 * found[-1]) == 0:
        found.append(2 * found[-1])
    return found


def _crossing(
    workload: Workload, profile: Profile, types: tuple[str, ...], sizes: list[int]
) -> np.ndarray:
    return np.array(
        [
            [
                [
                    2 * profile.between_nodes(one, other).seconds(boundary_bytes(workload, b))
                    for b in sizes
                ]
                for other in types
            ]
            for one in types
        ]
    )


def _by_option(arrays: _Arrays, speed: dict[str, float]) -> np.ndarray:
    factors = [speed[kind] for kind, _ in arrays.options]
    return np.array(factors)[:, None, None, None]


class _Arrays:
    """The per-layer arrays, entry by entry."""

    def __init__(
        self,
        workload: Workload,
        profile: Profile,
        types: tuple[str, ...],
        options: tuple[tuple[str, int], ...],
        sizes: list[int],
        variants: tuple[tuple[Variant, ...], ...],
        composition: Composition,
    ) -> None:
        self.options = options
        self._workload, self._profile = workload, profile
        model = workload.model
        kinds = model.block_kinds if len(model.block_kinds) == 2 else (None, *model.block_kinds)
        o, z, v = len(options), len(sizes), max(map(len, variants))
        self.ways = np.ones((o, v), np.int64)
        self.block_s = np.full((o, z, v, 2), np.inf)
        self.ends_s = np.full((o, z, 2), np.inf)
        self.kept_bytes = np.zeros((o, z, v, 2))
        self.kept_ends_bytes = np.zeros((o, z, 2))
        self.working_bytes = np.zeros((o, z, v, 2))
        self.block_numel = np.zeros((o, 2))
        self.expert_numel = np.zeros((o, v))
        for i, (gpu_type, tp) in enumerate(options):
            for k, kind in enumerate(kinds):
                if kind is None:
                    continue
                layer = model.layers if k else 1
                held = layer_numel(model, layer, tp)
                if kind == "moe_block":
                    held -= expert_numel(model) // tp
                    for j, variant in enumerate(variants[i]):
                        self.ways[i, j] = variant.ep * (variant.etp or tp)
                        if (variant.ep, variant.etp or tp) == (1, tp):
                            self.ways[i, j] = tp
                        self.expert_numel[i, j] = expert_numel(model) // self.ways[i, j]
                self.block_numel[i, k] = held
            for j, b in enumerate(sizes):
                for end, kind in enumerate(("embedding", "head")):
                    cost = self._cost(kind, gpu_type, tp, b)
                    if cost is not None:
                        self.ends_s[i, j, end] = _seconds(cost)
                        self.kept_ends_bytes[i, j, end] = cost.activation_bytes
                for n, variant in enumerate(variants[i]):
                    for k, kind in enumerate(kinds):
                        if kind is None:
                            self.block_s[i, j, n, k] = 0.0
                        else:
                            self._block(i, j, n, k, kind, variant, gpu_type, tp, b, composition)

    def _block(
        self,
        i: int,
        j: int,
        n: int,
        k: int,
        kind: str,
        variant: Variant,
        gpu_type: str,
        tp: int,
        b: int,
        composition: Composition,
    ) -> None:
        workload, profile = self._workload, self._profile
        etp = variant.etp or tp
        exchanged_s = 0.0
        if kind == "moe_block" and (variant.ep, etp) != (1, tp):
            try:
                cost: LayerCost | None = profile.tiled_cost(gpu_type, tp, b, variant.ep, etp)
            except UnprofiledConfiguration:
                return
            devices = _devices(composition, gpu_type, variant.ep * etp, tp)
            if devices is None:
                return
            tiling = Tiling(tp, variant.ep, etp)
            exchanged_s = expert_seconds(workload, profile, tiling, devices, b)
        else:
            cost = self._cost(kind, gpu_type, tp, b)
        if cost is None:
            return
        seconds = _seconds(cost) + cost.recompute_s(variant.recompute) + 2 * exchanged_s
        seconds += exchanged_s if variant.recompute == "full" else 0.0
        self.block_s[i, j, n, k] = seconds
        self.kept_bytes[i, j, n, k] = cost.kept_bytes(variant.recompute)
        self.working_bytes[i, j, n, k] = cost.working_bytes(variant.recompute)

    def _cost(self, kind: str, gpu_type: str, tp: int, b: int) -> LayerCost | None:
        return self._profile.layers.get((kind, gpu_type, tp, b))  # type: ignore[call-overload]


def _seconds(cost: LayerCost) -> float:
    return cost.forward_s + cost.backward_s + cost.tp_communication_s


def _devices(
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
