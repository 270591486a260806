"""Fill the estimator's tables from a profile.

Invariant: entries are the profile's own, seconds those of the rules of the cost model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits, gpus_by_type
from planner.cost import formulas
from planner.cost.expert_parallel import Tiling
from planner.cost.gradient_sync import layer_sizes
from planner.cost.links import EdgeEnd, nic_of, port
from planner.cost.memory import (
    boundary_bytes,
    kept_boundary_bytes,
    logits_bytes,
    rule_of,
    usable_bytes,
)
from planner.cost.variants import (
    Variant,
    exchange_seconds,
    largest_first,
    layer_seconds,
    variants_of,
)
from planner.errors import UnprofiledConfiguration
from planner.estimator.tables import MAX_DEPTH, Floats, Tables
from planner.model.shape import Kind
from planner.model.tensors import counted_numel, expert_numel, layer_numel, tied_numel
from planner.model.workload import Workload
from planner.placement.node_classes import NodeClass, class_sizes, type_sizes
from planner.placement.place import room_of
from planner.profiles.entries import LayerCost, LinkCost
from planner.profiles.profile import Profile

Row = TypeVar("Row")
Sites = tuple[Sequence[Node], Sequence[Node]]  # of an option: its class, and its GPU type
ENDS: tuple[Kind, Kind] = ("embedding", "head")


@dataclass(frozen=True, slots=True)
class Pricing:
    """The estimator's tables with the names behind their indices.

    Attributes:
        tables: for the estimator.
        classes: T node classes, sorted.
        options: O pairs (GPU type, TP degree), by class and TP ascending.
        variants: for each option its variants.
        by_type: whether all nodes of a GPU type count as alike, and a plan does not say which.
    """

    tables: Tables
    classes: tuple[NodeClass, ...]
    options: tuple[tuple[str, int], ...]
    variants: tuple[tuple[Variant, ...], ...]
    by_type: bool = False


def pricing_of(
    workload: Workload,
    composition: Composition,
    profile: Profile,
    *,
    min_replicas: int = 1,
    allow_ep: bool = True,
    stays_inside: bool = False,
    by_type: bool = False,
    max_gpus: GpuLimits = UNLIMITED,
) -> Pricing | None:
    """Tables for one workload on one composition; None if no option is profiled.

    Args:
        workload: what is trained.
        composition: its nodes are of profiled types.
        profile: supplies all costs.
        min_replicas: so many pipelines at least.
        allow_ep: whether experts may be spread over the replicas of a template.
        stays_inside: whether gradients are thought to be summed inside nodes; on a few nodes both
            may be best.
        by_type: whether all nodes of a GPU type count as alike.
        max_gpus: that a plan may use.
    """
    model = workload.model
    members = type_sizes(composition) if by_type else class_sizes(composition)
    classes = tuple(members)
    rows = tuple(
        (index, one.gpu_type, tp)
        for index, one in enumerate(classes)
        for tp in profile.tp_degrees(one.gpu_type)
        if tp <= min(one.gpus, max_gpus.most(one.gpu_type)) and model.allows_tp(tp)
    )
    sizes = sorted(
        {
            b
            for one in classes
            for b in profile.micro_batches(one.gpu_type)
            if b <= workload.global_batch
        }
    )
    if not rows or not sizes:
        return None
    owners = tuple(classes[index] for index, _, _ in rows)
    options = tuple((kind, tp) for _, kind, tp in rows)
    by_kind, nodes_of = defaultdict(list), defaultdict(list)
    for node in largest_first(composition.nodes):
        by_kind[node.gpu_type].append(node)
        nodes_of[NodeClass.of(node)].append(node)
    sites = tuple(
        (by_kind[one.gpu_type] if by_type else nodes_of[one], by_kind[one.gpu_type])
        for one in owners
    )
    gpus_allowed = max_gpus.allowed(composition)
    variants = tuple(
        variants_of(workload, composition, profile, option, allow_ep, nodes, gpus_allowed)
        for option, (nodes, _) in zip(options, sites, strict=True)
    )
    arrays = _Arrays(workload, profile, options, sizes, variants, sites)
    speed = np.array([owner.speed_factor for owner in owners])
    rule = rule_of(workload)
    shapes = [layer_sizes(model, layer, experts=False) for layer in range(model.layers + 2)]
    degrees, ends = [tp for _, tp in options], (0, model.layers + 1)
    gpus = [profile.gpu_type(one.gpu_type) for one in classes]
    room = [
        members[one] * (one.gpus // tp * tp) for one, (_, tp) in zip(owners, options, strict=True)
    ]
    if by_type:
        room_by_type = room_of(composition)
        room = [room_by_type[option] for option in options]
    room = [
        min(gpus, max_gpus.most(k) // tp * tp) for gpus, (k, tp) in zip(room, options, strict=True)
    ]
    limits = binding_limits(max_gpus, composition, [one.gpu_type for one in classes])
    spreads_experts = max(map(len, variants)) > 1 and model.experts is not None
    stays_inside = stays_inside or len(composition.nodes) == 1
    rings = bool(profile.rings) and not stays_inside

    def inside_seconds(one: NodeClass, b: int) -> float:
        link = profile.inside_node(one.gpu_type)
        return formulas.boundary_seconds(link.seconds(boundary_bytes(workload, b)))

    tables = Tables(
        batch=workload.global_batch,
        layers=model.layers,
        dense=model.experts.dense_blocks if model.experts else 0,
        zero=workload.zero,
        option_type=np.array([index for index, _, _ in rows]),
        option_tp=np.array(degrees),
        room=np.array(room),
        node_gpus=np.array([one.gpus for one in classes]),
        gpu_price=np.array([one.gpu_price for one in classes]),
        paid_gpus=np.array([one.paid_gpus or one.gpus for one in classes]),
        sizes=np.array(sizes),
        variants=np.array([len(row) for row in variants]),
        ways=arrays.ways,
        block_s=arrays.block_s / speed[:, None, None, None],
        ends_s=arrays.ends_s / speed[:, None, None],
        port_s=_port_seconds(workload, profile, owners, options, sizes),
        inside_s=_table(classes, sizes, inside_seconds),
        kept_bytes=arrays.kept_bytes,
        kept_ends_bytes=arrays.kept_ends_bytes,
        working_bytes=arrays.working_bytes,
        logits_bytes=_table(degrees, sizes, lambda tp, b: logits_bytes(workload, b, tp)),
        boundary_bytes=_table(degrees, sizes, lambda tp, b: kept_boundary_bytes(workload, b, tp)),
        block_numel=arrays.block_numel,
        expert_numel=arrays.expert_numel,
        ends_numel=_table(degrees, ends, lambda tp, layer: layer_numel(model, layer, tp)),
        tied_numel=np.array([float(tied_numel(model, tp)) for tp in degrees]),
        counted_numel=float(counted_numel(model)),
        state_bytes=np.array([rule.weight, rule.gradient, rule.optimizer, rule.step], float),
        bucket_numel=float(rule.bucket),
        messages=rule.messages,
        usable_bytes=np.array([float(usable_bytes(workload, gpu)) for gpu in gpus]),
        optimizer_s=np.array(
            [
                [gpu.optimizer_latency_s / speed, gpu.optimizer_s_per_parameter / speed]
                for gpu, speed in zip(gpus, (one.speed_factor for one in classes), strict=True)
            ]
        ),
        sharded_bytes=np.array([float(cut * rule.gradient) for cut, _ in shapes]),
        whole_bytes=np.array([float(whole * rule.gradient) for _, whole in shapes]),
        tied_bytes=float(tied_numel(model) * rule.gradient),
        nic=np.array(
            [
                profile.inside_node(one.gpu_type).line
                if stays_inside
                else _nic_of(profile, one).shared_by(formulas.nic_share(one.gpus, 1)).line
                for one in classes
            ]
        ),
        ring=_ring_lines(profile, classes),
        stays_inside=int(stays_inside),
        rings=int(rings),
        spreads_experts=int(spreads_experts),
        both_ways=int(rings and not spreads_experts and max(one.gpus for one in classes) > 1),
        caps=np.full((*arrays.block_s.shape[:3], MAX_DEPTH + 1, 4, arrays.dense + 1), -2, np.int16),
        min_replicas=min_replicas,
        limit=np.array([most for most, _ in limits], np.int64),
        is_limited=np.array([row for _, row in limits], np.int64).reshape(-1, len(classes)),
    )
    return Pricing(tables, classes, options, variants, by_type)


def binding_limits(
    max_gpus: GpuLimits, composition: Composition, kinds: Sequence[str]
) -> list[tuple[int, list[bool]]]:
    """Limits on classes of these types together, each with the classes that count.

    One class alone is limited by its room; who cannot exceed a limit is not limited by it.
    """
    there = gpus_by_type(composition)
    below = {name: most for name, most in max_gpus.by_type if most < there[name]}
    limits = [
        (most, [kind == name for kind in kinds])
        for name, most in below.items()
        if kinds.count(name) > 1 and most == max_gpus.most(name)
    ]
    total = max_gpus.total
    if total is not None and len(kinds) > 1 and total < sum((there | below).values()):
        limits.append((total, [True] * len(kinds)))
    return limits


def _table(
    rows: Sequence[Row], columns: Sequence[int], value: Callable[[Row, int], float]
) -> Floats:
    """A number for each row and column."""
    return np.array([[float(value(row, column)) for column in columns] for row in rows])


def _nic_of(profile: Profile, owner: NodeClass) -> LinkCost:
    return nic_of(profile, owner.gpu_type, owner.nic_bytes_per_s or None)


def _port_seconds(
    workload: Workload,
    profile: Profile,
    owners: tuple[NodeClass, ...],
    options: tuple[tuple[str, int], ...],
    sizes: list[int],
) -> Floats:
    """[O, Z, G + 1] seconds of an edge over the NIC of a stage, by the GPUs that send at once."""
    largest = max(owner.gpus for owner in owners)
    found = []
    for owner, option in zip(owners, options, strict=True):
        ends = (
            EdgeEnd(*option, min(sending, owner.gpus), owner.nic_bytes_per_s or None)
            for sending in range(largest + 1)
        )
        ports = [port(profile, end) for end in ends]
        messages = [boundary_bytes(workload, b) for b in sizes]
        found.append([[formulas.boundary_seconds(p.seconds(m)) for p in ports] for m in messages])
    return np.array(found)


def _ring_lines(profile: Profile, classes: tuple[NodeClass, ...]) -> Floats:
    """[T, G + 1, 2] latency and seconds per byte of rings inside a node, by their members."""
    sizes = range(max(one.gpus for one in classes) + 1)
    return np.array(
        [[profile.inside_ring(one.gpu_type, size).line for size in sizes] for one in classes]
    )


class _Arrays:
    """The per-layer arrays, entry by entry."""

    def __init__(
        self,
        workload: Workload,
        profile: Profile,
        options: tuple[tuple[str, int], ...],
        sizes: list[int],
        variants: tuple[tuple[Variant, ...], ...],
        sites: Sequence[Sites],
    ) -> None:
        self._workload, self._profile = workload, profile
        model = workload.model
        kinds = model.block_kinds if len(model.block_kinds) == 2 else (None, *model.block_kinds)
        o, z, v = len(options), len(sizes), max(map(len, variants))
        self.dense = model.experts.dense_blocks if model.experts else 0
        self.ways = np.ones((o, v), np.int64)
        self.block_s = np.full((o, z, v, 2), np.inf)
        self.ends_s = np.full((o, z, 2), np.inf)
        self.kept_bytes = np.zeros((o, z, v, 2))
        self.kept_ends_bytes = np.zeros((o, z, 2))
        self.working_bytes = np.zeros((o, z, v, 2))
        self.block_numel = np.zeros((o, 2))
        self.expert_numel = np.zeros((o, v))
        for i, option in enumerate(options):
            for k, kind in enumerate(kinds):
                if kind is not None:
                    self._parameters(i, k, kind, option[1], variants[i])
            for j, b in enumerate(sizes):
                self._ends(i, j, option, b)
                for n, variant in enumerate(variants[i]):
                    for k, kind in enumerate(kinds):
                        if kind is None:
                            self.block_s[i, j, n, k] = 0.0
                        else:
                            self._block(i, j, n, k, kind, variant, *option, b, sites[i])

    def _parameters(
        self, i: int, k: int, kind: Kind, tp: int, variants: tuple[Variant, ...]
    ) -> None:
        model = self._workload.model
        held = layer_numel(model, model.layers if k else 1, tp)
        if kind == "moe_block":
            held -= expert_numel(model) // tp
            for j, variant in enumerate(variants):
                self.ways[i, j] = variant.ep * (variant.etp or tp)
                self.expert_numel[i, j] = expert_numel(model) // self.ways[i, j]
        self.block_numel[i, k] = held

    def _ends(self, i: int, j: int, option: tuple[str, int], b: int) -> None:
        for end, kind in enumerate(ENDS):
            cost = self._cost(kind, *option, b)
            if cost is not None:
                self.ends_s[i, j, end] = layer_seconds(cost)
                self.kept_ends_bytes[i, j, end] = cost.activation_bytes

    def _block(
        self,
        i: int,
        j: int,
        n: int,
        k: int,
        kind: Kind,
        variant: Variant,
        gpu_type: str,
        tp: int,
        b: int,
        sites: Sites,
    ) -> None:
        etp = variant.etp or tp
        exchanged_s = 0.0
        if kind == "moe_block" and (variant.ep, etp) != (1, tp):
            try:
                cost: LayerCost | None = self._profile.tiled_cost(gpu_type, tp, b, variant.ep, etp)
            except UnprofiledConfiguration:
                return
            tiling = Tiling(tp, variant.ep, etp)
            found_s = exchange_seconds(self._workload, self._profile, sites, gpu_type, tiling, b)
            if found_s is None:
                return
            exchanged_s = found_s
        else:
            cost = self._cost(kind, gpu_type, tp, b)
        if cost is None:
            return
        passes = formulas.exchanged_passes(variant.recompute == "full")
        seconds = layer_seconds(cost) + cost.recompute_s(variant.recompute)
        self.block_s[i, j, n, k] = seconds + passes * exchanged_s
        self.kept_bytes[i, j, n, k] = cost.kept_bytes(variant.recompute)
        self.working_bytes[i, j, n, k] = cost.working_bytes(variant.recompute)

    def _cost(self, kind: Kind, gpu_type: str, tp: int, b: int) -> LayerCost | None:
        return self._profile.layers.get((kind, gpu_type, tp, b))
