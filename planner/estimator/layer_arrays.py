"""The tables of what single layers take and hold, for each option of a composition.

Invariant: entries are the profile's own, seconds those of the rules of the cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cluster.composition import Node
from planner.cost import formulas
from planner.cost.expert_parallel import Tiling
from planner.cost.variants import KnownExchanges, Variant, exchange_seconds, layer_seconds
from planner.errors import UnprofiledConfiguration
from planner.model.shape import Kind
from planner.model.tensors import expert_numel, layer_numel
from planner.model.workload import Workload
from planner.placement.node_classes import NodeClass
from planner.profiles.entries import LayerCost
from planner.profiles.profile import Profile

Layout = tuple[tuple[int, float | None], ...]  # of each node: GPUs, bytes per second of its NIC
ENDS: tuple[Kind, Kind] = ("embedding", "head")


@dataclass(frozen=True, slots=True)
class Sites:
    """Nodes on which the stages of an option may stand, the largest first.

    Attributes:
        nodes: those of its class, and those of its GPU type.
        layout: all that the exchange of experts depends on: equal layouts take equal seconds.
    """

    nodes: tuple[Sequence[Node], Sequence[Node]]
    layout: tuple[Layout, Layout]


@dataclass(frozen=True, slots=True)
class Axes:
    """What the indices of the tables name."""

    classes: tuple[NodeClass, ...]
    option_class: tuple[int, ...]  # index of the class of each option
    options: tuple[tuple[str, int], ...]
    sizes: list[int]  # of micro-batches, ascending

    @property
    def owned_options(self) -> list[tuple[NodeClass, tuple[str, int]]]:
        """Each option behind its class."""
        owners = (self.classes[index] for index in self.option_class)
        return list(zip(owners, self.options, strict=True))


class LayerArrays:
    """The arrays of `Tables` by option and layer, entry by entry."""

    def __init__(
        self,
        workload: Workload,
        profile: Profile,
        axes: Axes,
        variants: tuple[tuple[Variant, ...], ...],
        sites: Sequence[Sites],
        known: KnownExchanges,
    ) -> None:
        self._workload, self._profile, self._known = workload, profile, known
        model = workload.model
        kinds = model.block_kinds if len(model.block_kinds) == 2 else (None, *model.block_kinds)
        o, z, v = len(axes.options), len(axes.sizes), max(map(len, variants))
        self.dense = model.experts.dense_blocks if model.experts else 0
        self.variants = np.array([len(row) for row in variants])
        self.ways = np.ones((o, v), np.int64)
        self.block_s = np.full((o, z, v, 2), np.inf)
        self.ends_s = np.full((o, z, 2), np.inf)
        self.kept_bytes = np.zeros((o, z, v, 2))
        self.kept_ends_bytes = np.zeros((o, z, 2))
        self.working_bytes = np.zeros((o, z, v, 2))
        self.block_numel = np.zeros((o, 2))
        self.expert_numel = np.zeros((o, v))
        alike: dict[object, int] = {}  # the first option whose rows are the same
        for i, option in enumerate(axes.options):
            first = alike.setdefault((option, variants[i], sites[i].layout), i)
            if first < i:
                self._copy(first, i)
                continue
            for k, kind in enumerate(kinds):
                if kind is not None:
                    self._parameters(i, k, kind, option[1], variants[i])
            for j, b in enumerate(axes.sizes):
                self._ends(i, j, option, b)
                for n, variant in enumerate(variants[i]):
                    for k, kind in enumerate(kinds):
                        if kind is None:
                            self.block_s[i, j, n, k] = 0.0
                        else:
                            self._block(i, j, n, k, kind, variant, *option, b, sites[i])

    def _copy(self, first: int, i: int) -> None:
        """The rows of an option whose class differs from the first in speed or price alone."""
        for rows in (
            *(self.ways, self.block_s, self.ends_s, self.kept_bytes, self.kept_ends_bytes),
            *(self.working_bytes, self.block_numel, self.expert_numel),
        ):
            rows[i] = rows[first]

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
            found_s = exchange_seconds(
                self._workload, self._profile, sites.nodes, gpu_type, tiling, b, self._known
            )
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
