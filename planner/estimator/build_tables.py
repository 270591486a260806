"""Fill the estimator's tables from a profile.

Invariant: entries are the profile's own, seconds those of the rules of the cost model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits, gpus_by_type
from planner.cost import formulas
from planner.cost.gradient_sync import layer_sizes
from planner.cost.links import EdgeEnd, nic_of, port_seconds
from planner.cost.memory import (
    boundary_bytes,
    kept_boundary_bytes,
    logits_bytes,
    rule_of,
    usable_bytes,
)
from planner.cost.variants import (
    KnownExchanges,
    Variant,
    largest_first,
    variants_of,
)
from planner.estimator.layer_arrays import Axes, LayerArrays, Layout, Sites
from planner.estimator.tables import MAX_DEPTH, Floats, Ints, Tables
from planner.model.tensors import counted_numel, layer_numel, tied_numel
from planner.model.workload import Workload
from planner.placement.node_classes import (
    NodeClass,
    class_sizes,
    sizes_at_any_speed,
    type_sizes,
)
from planner.placement.place import room_of
from planner.profiles.entries import GpuType, LinkCost
from planner.profiles.profile import Profile

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The estimator's tables with the names behind their indices.

    Attributes:
        tables: for the estimator.
        classes: T node classes, sorted.
        options: O pairs (GPU type, TP degree), by class and TP ascending.
        variants: for each option its variants.
        by_type: whether all nodes of a GPU type count as alike, and a plan does not say which.
        any_speed: whether nodes that differ in speed alone count as alike.
    """

    tables: Tables
    classes: tuple[NodeClass, ...]
    options: tuple[tuple[str, int], ...]
    variants: tuple[tuple[Variant, ...], ...]
    by_type: bool = False
    any_speed: bool = False


def pricing_of(
    workload: Workload,
    composition: Composition,
    profile: Profile,
    *,
    min_replicas: int = 1,
    allow_ep: bool = True,
    stays_inside: bool = False,
    by_type: bool = False,
    any_speed: bool = False,
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
        any_speed: whether nodes that differ in speed alone do, as the one in the middle.
        max_gpus: that a plan may use.
    """
    if by_type:
        members = type_sizes(composition)
    else:
        members = (sizes_at_any_speed if any_speed else class_sizes)(composition)
    classes = tuple(members)
    rows = tuple(
        (index, one.gpu_type, tp)
        for index, one in enumerate(classes)
        for tp in profile.tp_degrees(one.gpu_type)
        if tp <= min(one.gpus, max_gpus.most(one.gpu_type)) and workload.model.allows_tp(tp)
    )
    sizes = {b for one in classes for b in profile.micro_batches(one.gpu_type)}
    sizes = {b for b in sizes if b <= workload.global_batch}
    if not rows or not sizes:
        return None
    options = tuple((kind, tp) for _, kind, tp in rows)
    axes = Axes(classes, tuple(index for index, _, _ in rows), options, sorted(sizes))
    sites = _sites(axes, composition, by_type=by_type, any_speed=any_speed)
    gpus_allowed = max_gpus.allowed(composition)
    known: KnownExchanges = {}
    variants = _variants(
        workload, composition, profile, options, allow_ep, sites, gpus_allowed, known
    )
    if by_type:
        room_by_type = room_of(composition)
        room = [room_by_type[option] for option in options]
    else:
        room = [members[one] * (one.gpus // tp * tp) for one, (_, tp) in axes.owned_options]
    room = [
        min(gpus, max_gpus.most(k) // tp * tp) for gpus, (k, tp) in zip(room, options, strict=True)
    ]
    stays_inside = stays_inside or len(composition.nodes) == 1
    arrays = LayerArrays(workload, profile, axes, variants, sites, known)
    limits = binding_limits(max_gpus, composition, [one.gpu_type for one in classes])
    nodes = _nodes_by_gpus(composition, members, by_type=by_type)
    tables = _tables(
        workload, profile, axes, arrays, room, nodes, limits, stays_inside, min_replicas
    )
    return Pricing(
        tables=tables,
        classes=classes,
        options=options,
        variants=variants,
        by_type=by_type,
        any_speed=any_speed,
    )


def _nodes_by_gpus(
    composition: Composition, members: Mapping[NodeClass, int], *, by_type: bool
) -> Ints:
    """[T, G + 1] nodes of each class by their GPUs."""
    nodes = np.zeros((len(members), max(composition.largest_gpus.values()) + 1), np.int64)
    for row, (one, count) in zip(nodes, members.items(), strict=True):
        if by_type:
            for node in composition.nodes:
                row[node.gpus] += node.gpu_type == one.gpu_type
        else:
            row[one.gpus] = count
    return nodes


def _sites(
    axes: Axes, composition: Composition, *, by_type: bool, any_speed: bool
) -> tuple[Sites, ...]:
    """The nodes of each option, the largest first."""
    by_kind, nodes_of = defaultdict(list), defaultdict(list)
    for node in largest_first(composition.nodes):
        by_kind[node.gpu_type].append(node)
        nodes_of[_kind_of(NodeClass.of(node), any_speed)].append(node)
    layout_of_kind = {kind: _layout(nodes) for kind, nodes in by_kind.items()}
    found = []
    for one in axes.classes:
        everywhere, layout = by_kind[one.gpu_type], layout_of_kind[one.gpu_type]
        if by_type:
            found.append(Sites((everywhere, everywhere), (layout, layout)))
        else:
            nodes = nodes_of[_kind_of(one, any_speed)]
            found.append(Sites((nodes, everywhere), (_layout(nodes), layout)))
    return tuple(found[index] for index in axes.option_class)


def _kind_of(one: NodeClass, any_speed: bool) -> NodeClass:
    return replace(one, speed_factor=1.0) if any_speed else one


def _layout(nodes: Sequence[Node]) -> Layout:
    return tuple((node.gpus, node.nic_bytes_per_s) for node in nodes)


def _variants(
    workload: Workload,
    composition: Composition,
    profile: Profile,
    options: Sequence[tuple[str, int]],
    allow_ep: bool,
    sites: Sequence[Sites],
    gpus: int,
    exchanges: KnownExchanges,
) -> tuple[tuple[Variant, ...], ...]:
    """The variants of each option; classes that differ in speed or price have the same."""
    known: dict[object, tuple[Variant, ...]] = {}
    for option, site in zip(options, sites, strict=True):
        key = option, site.layout
        if key not in known:
            known[key] = variants_of(
                workload, composition, profile, option, allow_ep, site.nodes[0], gpus, exchanges
            )
    return tuple(known[option, site.layout] for option, site in zip(options, sites, strict=True))


def _tables(
    workload: Workload,
    profile: Profile,
    axes: Axes,
    arrays: LayerArrays,
    room: list[int],
    nodes: Ints,
    limits: list[tuple[int, list[bool]]],
    stays_inside: bool,
    min_replicas: int,
) -> Tables:
    """The tables of what `pricing_of` has found."""
    model, classes, sizes = workload.model, axes.classes, axes.sizes
    degrees, ends = [tp for _, tp in axes.options], (0, model.layers + 1)
    rule = rule_of(workload)
    speed = np.array([owner.speed_factor for owner, _ in axes.owned_options])
    shapes = [layer_sizes(model, layer, experts=False) for layer in range(model.layers + 2)]
    gpus = [profile.gpu_type(one.gpu_type) for one in classes]
    spreads_experts = arrays.ways.shape[1] > 1 and model.experts is not None
    rings = bool(profile.rings) and not stays_inside
    return Tables(
        batch=workload.global_batch,
        layers=model.layers,
        dense=arrays.dense,
        zero=workload.zero,
        option_type=np.array(axes.option_class),
        option_tp=np.array(degrees),
        room=np.array(room),
        node_gpus=np.array([one.gpus for one in classes]),
        nodes=nodes,
        gpu_price=np.array([one.gpu_price for one in classes]),
        paid_gpus=np.array([one.paid_gpus or one.gpus for one in classes]),
        sizes=np.array(sizes),
        variants=arrays.variants,
        ways=arrays.ways,
        block_s=arrays.block_s / speed[:, None, None, None],
        ends_s=arrays.ends_s / speed[:, None, None],
        port_s=_port_seconds(workload, profile, axes),
        inside_s=_inside_seconds(workload, profile, axes),
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
        optimizer_s=_optimizer_seconds(gpus, classes),
        sharded_bytes=np.array([float(cut * rule.gradient) for cut, _ in shapes]),
        whole_bytes=np.array([float(whole * rule.gradient) for _, whole in shapes]),
        tied_bytes=float(tied_numel(model) * rule.gradient),
        nic=_nic_lines(profile, classes, stays_inside),
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


def _inside_seconds(workload: Workload, profile: Profile, axes: Axes) -> Floats:
    """[T, Z] seconds of an edge inside a node."""

    def seconds(one: NodeClass, b: int) -> float:
        link = profile.inside_node(one.gpu_type)
        return formulas.boundary_seconds(link.seconds(boundary_bytes(workload, b)))

    return _table(axes.classes, axes.sizes, seconds)


def _port_seconds(workload: Workload, profile: Profile, axes: Axes) -> Floats:
    """[O, Z, G + 1] seconds of an edge over the NIC of a stage, by the GPUs that send at once."""
    largest = max(owner.gpus for owner, _ in axes.owned_options)
    found = []
    for owner, option in axes.owned_options:
        ends = [
            EdgeEnd(*option, min(sending, owner.gpus), owner.nic_bytes_per_s or None)
            for sending in range(largest + 1)
        ]
        messages = [boundary_bytes(workload, b) for b in axes.sizes]
        found.append(
            [
                [formulas.boundary_seconds(port_seconds(profile, end, num_bytes)) for end in ends]
                for num_bytes in messages
            ]
        )
    return np.array(found)


def _optimizer_seconds(gpus: Sequence[GpuType], classes: tuple[NodeClass, ...]) -> Floats:
    """[T, 2] latency, and seconds per parameter."""
    return np.array(
        [
            [x / one.speed_factor for x in (gpu.optimizer_latency_s, gpu.optimizer_s_per_parameter)]
            for gpu, one in zip(gpus, classes, strict=True)
        ]
    )


def _nic_lines(profile: Profile, classes: tuple[NodeClass, ...], stays_inside: bool) -> Floats:
    """[T, 2] latency and seconds per byte of a GPU's share of its node's NIC."""
    return np.array(
        [
            profile.inside_node(one.gpu_type).line
            if stays_inside
            else _nic_of(profile, one).shared_by(formulas.nic_share(one.gpus, 1)).line
            for one in classes
        ]
    )


def _ring_lines(profile: Profile, classes: tuple[NodeClass, ...]) -> Floats:
    """[T, G + 1, 2] latency and seconds per byte of rings inside a node, by their members."""
    sizes = range(max(one.gpus for one in classes) + 1)
    return np.array(
        [[profile.inside_ring(one.gpu_type, size).line for size in sizes] for one in classes]
    )
