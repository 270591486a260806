"""Least time of every possible stage: the costs behind the upper bound.

No stage of any plan is faster, wherever it stands.  A message takes the node's own link where a
neighbour has room beside the stage, else a network card that nobody else uses; one micro-batch is
kept in memory, however many are in flight; experts exchange their tokens where that is cheapest.
Invariant: every second is at most what `planner.cost.evaluate` finds.
Legend: K device groups, L blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.cluster.composition import Composition
from planner.cost import formulas
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.links import nic_of
from planner.cost.memory import StageSlot, boundary_bytes, layers_that_fit, rule_of
from planner.cost.stage import stage_seconds
from planner.errors import UnprofiledConfiguration
from planner.model.tensors import expert_numel, layer_numel
from planner.model.workload import STAGE_RECOMPUTATIONS, Workload
from planner.placement.node_classes import NodeClass, class_sizes
from planner.plans.plan import Stage
from planner.profiles.profile import Profile

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

# (index, depth) of a stage that is in the middle of its pipeline, the first, the last, the only one
PLACES = ((1, 3), (0, 2), (1, 2), (0, 1))
MOST_REPLICAS = 10**6  # over which ZeRO may cut the optimizer
DEGREES = tuple(1 << exponent for exponent in range(12))  # of EP and ETP
WHOLE = 1 - 1e-6  # gradients are cut into whole elements


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that run a stage: a TP degree on the nodes of a class."""

    node: NodeClass  # class of the nodes
    tp: int  # TP degree
    nic_bytes_per_s: float  # of the network card of these nodes
    neighbours: int  # groups that its node has room for beside it, at most


class StageCosts:
    """The least seconds of all stages for a workload on a composition of profiled GPU types.

    Attributes:
        groups: K of them, by node class, smaller degrees first.
    """

    def __init__(self, workload: Workload, composition: Composition, profile: Profile) -> None:
        """Find the device groups; stages are priced when they are asked for."""
        self._workload, self._profile, self._model = workload, profile, workload.model
        networks = (profile.network, *profile.nics.values())
        self._latency_s = min(link.latency_s for link in networks)
        self._is_by_size = any(link.points for link in networks)  # then no rate is the fastest
        self._gpus = composition.gpus
        self._largest_node = max(node.gpus for node in composition.nodes)
        self.groups = tuple(self._device_groups(composition))

    def _device_groups(self, composition: Composition) -> Iterator[Group]:
        for node in class_sizes(composition):
            profiled = self._profile.tp_degrees(node.gpu_type)
            degrees = [tp for tp in profiled if tp <= node.gpus and self._model.allows_tp(tp)]
            nic = nic_of(self._profile, node.gpu_type, node.nic_bytes_per_s or None)
            for tp in degrees:
                yield Group(node, tp, nic.bandwidth_bytes_per_s, (node.gpus - tp) // min(degrees))

    def seconds(self, b: int) -> Floats:
        """[place, K, L + 1] seconds of a stage for a micro-batch of b samples, by its blocks.

        Infinite where the blocks do not fit, or the profile has no entry.
        """
        blocks = np.arange(self._model.layers + 1)
        found = np.full((len(PLACES), len(self.groups), len(blocks)), np.inf)
        asked = self._workload.recompute
        again = STAGE_RECOMPUTATIONS if asked == "auto" else (asked,)
        for (k, group), recompute in product(enumerate(self.groups), again):
            for ep, etp in self._tilings(group, b):
                stage = Stage(
                    gpu_type=group.node.gpu_type,
                    tp=group.tp,
                    layers=1,
                    recompute=recompute,
                    ep=ep,
                    etp=etp,
                )
                try:
                    first_s, block_s, last_s = self._layer_seconds(stage, group, b)
                except UnprofiledConfiguration:
                    continue
                for place, (index, depth) in enumerate(PLACES):
                    ends_s = first_s * (index == 0) + last_s * (index == depth - 1)
                    row = (ends_s + block_s * blocks) / group.node.speed_factor
                    row += self._message_seconds(group, b, (index > 0) + (index < depth - 1))
                    row[0] = row[self._most_blocks(stage, b, index, depth) + 1 :] = math.inf
                    found[place, k] = np.minimum(found[place, k], row)
        return found

    def _tilings(self, group: Group, b: int) -> Iterator[tuple[int, int]]:
        """(EP, ETP) of a stage on such a group, powers of two; ETP 0: as TP cuts the rest."""
        yield 1, 0
        kind = group.node.gpu_type
        if self._model.experts is not None:
            within = (d for d in DEGREES if d <= self._largest_node)
            for ep, etp in product(DEGREES, within):
                is_other = (ep, etp) != (1, group.tp) and ep * etp <= group.tp * self._gpus
                if is_other and (kind, group.tp, b, ep, etp) in self._profile.tiles:
                    yield ep, etp

    def _exchange_seconds(self, stage: Stage, group: Group, b: int) -> float:
        """Expert communication of a block in one pass, each part where it is cheapest."""

        def part_s(ep: int, etp: int) -> float:
            size, tiling = ep * etp, Tiling(stage.tp, ep, etp)
            apart = [Device(str(n), stage.gpu_type, group.nic_bytes_per_s) for n in range(size)]
            layouts = [apart, apart[:1] * size][: 1 + (size <= self._largest_node)]
            return min(
                expert_seconds(self._workload, self._profile, tiling, d, b, None) for d in layouts
            )

        return part_s(stage.ep, 1) + part_s(1, stage.expert_tp)

    def _layer_seconds(self, stage: Stage, group: Group, b: int) -> tuple[float, float, float]:
        """Seconds of the embedding, of the block that takes least, and of the head."""
        last = self._model.layers
        exchange_s = self._exchange_seconds(stage, group, b) if stage.is_tiled else 0.0
        works = [
            stage_seconds(self._profile, self._model, stage, b, range(layer, layer + 1), exchange_s)
            for layer in (0, 1, last, last + 1)
        ]
        seconds = [w.forward_s + w.backward_s + w.communication_s + w.recompute_s for w in works]
        return seconds[0], min(seconds[1:3]), seconds[3]

    def _most_blocks(self, stage: Stage, b: int, index: int, depth: int) -> int:
        """Blocks that fit where one micro-batch is kept."""
        replicas = MOST_REPLICAS if self._workload.zero else 1
        slots = (  # blocks of the model's last kind, or its first ones
            StageSlot(
                gpu_type=stage.gpu_type,
                tp=stage.tp,
                micro_batch=b,
                micro_batches=1,
                depth=depth,
                index=index,
                recompute=stage.recompute,
                replicas=replicas,
                ep=stage.ep,
                etp=stage.etp,
                start=start,
            )
            for start in (None, 1)
        )
        return max(layers_that_fit(self._workload, self._profile, slot) for slot in slots)

    def _message_seconds(self, group: Group, b: int, edges: int) -> float:
        """Activations and gradients over so many edges, each as cheap as it can be."""
        num_bytes = boundary_bytes(self._workload, b)
        crossing_s = 0.0
        if not self._is_by_size:
            crossing_s = self._latency_s + num_bytes / group.nic_bytes_per_s
        inside_s = self._profile.inside_node(group.node.gpu_type).seconds(num_bytes)
        inside = min(edges, group.neighbours)
        message_s = inside * min(inside_s, crossing_s) + (edges - inside) * crossing_s
        return formulas.boundary_seconds(message_s)

    def closing_seconds(self, replicas: int) -> Floats:
        """[K, L + 1] share of a stage in gradient sum and optimizer step, by its blocks.

        The longest of any GPU is no shorter than the mean over the stages of one pipeline, weighted
        with their blocks: a share is the seconds of the stage times its part of all blocks.  At
        least so many replicas hold each gradient, on more than one node; with 1 it may stay inside.
        """
        blocks = np.arange(self._model.layers + 1)
        each_bytes = rule_of(self._workload).gradient
        ring = formulas.ring_factor(replicas) * WHOLE * (not self._is_by_size)
        shares = []
        for group in self.groups:
            kind = self._profile.gpu_type(group.node.gpu_type)
            held = blocks * min(self._block_numel(layer, group.tp) for layer in (1, blocks[-1]))
            stepped = held * (self._workload.zero == 0)
            step_s = kind.optimizer_latency_s + kind.optimizer_s_per_parameter * stepped
            sum_s = ring * held * each_bytes / group.nic_bytes_per_s
            shares.append((step_s / group.node.speed_factor + sum_s) * blocks / blocks[-1])
        return np.array(shares)

    def _block_numel(self, layer: int, tp: int) -> int:
        """Elements of a block on a GPU, without routed experts."""
        is_moe = self._model.kind(layer) == "moe_block"
        routed = expert_numel(self._model) // tp if is_moe else 0
        return layer_numel(self._model, layer, tp) - routed
