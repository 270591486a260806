"""Numbers of a question that several formulas want: seconds, parameters and bytes by layer, links.

Layers are [embedding, block 1..L, head], so that a plan of L blocks has L + 2 of them.
Invariant: every second, byte and rate is the profile's or the model's; nothing is fitted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

from benchmarks.baselines.interface import Question
from planner.cluster.composition import Composition, Node
from planner.cost.memory import boundary_bytes
from planner.errors import InvalidComposition
from planner.model.tensors import layer_numel
from planner.profiles.entries import LayerCost
from planner.profiles.operators import VALUE_BYTES


@dataclass(frozen=True, eq=False)
class Quantities:
    """Numbers of one question."""

    question: Question
    recomputed: str = ""  # by every stage, where a baseline says so; empty: as the workload asks

    @cached_property
    def layers(self) -> int:
        """L + 2."""
        return self.question.workload.model.layers + 2

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of a weight or an activation in the training precision."""
        return VALUE_BYTES[self.question.workload.precision]

    @cached_property
    def recompute(self) -> str:
        """What every stage recomputes."""
        asked = self.recomputed or self.question.workload.recompute
        return "none" if asked == "auto" else asked

    @cache  # noqa: B019  (lives as long as the search)
    def costs(self, gpu_type: str, tp: int, micro_batch: int) -> tuple[LayerCost, ...]:
        """The profile's entry of each layer.

        Raises:
            UnprofiledConfiguration: there is none.
        """
        model, profile = self.question.workload.model, self.question.profile
        by_kind = {
            kind: profile.layer_cost(kind, gpu_type, tp, micro_batch)
            for kind in ("embedding", *model.block_kinds, "head")
        }
        return tuple(by_kind[model.kind(layer)] for layer in range(self.layers))

    @cache  # noqa: B019
    def layer_seconds(self, gpu_type: str, tp: int, micro_batch: int) -> tuple[float, ...]:
        """Both passes of each layer for one micro-batch, TP communication and recomputation too."""
        return tuple(
            cost.forward_s
            + cost.backward_s
            + cost.tp_communication_s
            + (cost.recompute_s(self.recompute) if 0 < layer < self.layers - 1 else 0.0)
            for layer, cost in enumerate(self.costs(gpu_type, tp, micro_batch))
        )

    @cache  # noqa: B019
    def forward_seconds(self, gpu_type: str, tp: int, micro_batch: int) -> tuple[float, ...]:
        """The forward pass of each layer, half of the TP communication included."""
        costs = self.costs(gpu_type, tp, micro_batch)
        return tuple(cost.forward_s + cost.tp_communication_s / 2 for cost in costs)

    @cache  # noqa: B019
    def parameters(self, tp: int) -> tuple[int, ...]:
        """Parameters of each layer on one GPU of a TP group."""
        model = self.question.workload.model
        return tuple(layer_numel(model, layer, tp) for layer in range(self.layers))

    @cache  # noqa: B019
    def activation_bytes(self, gpu_type: str, tp: int, micro_batch: int) -> tuple[int, ...]:
        """Kept of each layer for one micro-batch in flight, on one GPU of a TP group."""
        return tuple(
            cost.kept_bytes(self.recompute if 0 < layer < self.layers - 1 else "none")
            for layer, cost in enumerate(self.costs(gpu_type, tp, micro_batch))
        )

    def boundary_bytes(self, samples: int) -> int:
        """The activation of so many samples between two layers."""
        return boundary_bytes(self.question.workload, samples)

    def inside(self, gpu_type: str) -> float:
        """Bytes per second between two GPUs of a node."""
        return self.question.profile.inside_node(gpu_type).bandwidth_bytes_per_s

    @cache  # noqa: B019
    def between(self, first: str, second: str) -> float:
        """Bytes per second between nodes of two GPU types: the slower network card."""
        return self.question.profile.between_nodes(first, second).bandwidth_bytes_per_s

    def memory_bytes(self, gpu_type: str) -> int:
        """Physical memory of a GPU."""
        return self.question.profile.gpu_type(gpu_type).memory_bytes

    @cache  # noqa: B019
    def tp_degrees(self, gpu_type: str, most: int) -> tuple[int, ...]:
        """Profiled TP degrees up to `most` that cut the model evenly."""
        model, profile = self.question.workload.model, self.question.profile
        return tuple(
            tp for tp in profile.tp_degrees(gpu_type) if tp <= most and model.allows_tp(tp)
        )

    @cached_property
    def micro_batches(self) -> tuple[int, ...]:
        """Micro-batch sizes that are profiled on every GPU type."""
        types = self.question.composition.gpu_types
        sets = [set(self.question.profile.micro_batches(gpu_type)) for gpu_type in types]
        batch = self.question.workload.global_batch
        return tuple(b for b in sorted(set.intersection(*sets)) if batch % b == 0)


def require_profiled(question: Question) -> None:
    """Refuse a question without GPUs, or with a type that has no profile.

    Raises:
        InvalidComposition: there is no GPU.
        UnprofiledConfiguration: of a GPU type or of the workload.
    """
    if not question.composition.nodes:
        raise InvalidComposition("the composition has no GPU; give at least one", code="Missing")
    question.profile.require(question.workload)
    for gpu_type in question.composition.gpu_types:
        question.profile.gpu_type(gpu_type)


def uniform_reading(composition: Composition) -> tuple[Composition, int]:
    """The nodes as a planner that needs equal ones reads them, and the GPUs of a node.

    Where sizes differ, every GPU is a node of its own, as in the paper's section 6.2.
    """
    sizes = {node.gpus for node in composition.nodes}
    if len(sizes) == 1:
        return composition, sizes.pop()
    nodes = tuple(
        Node(name=f"{node.name}/{gpu}", gpu_type=node.gpu_type, gpus=1)
        for node in composition.nodes
        for gpu in range(node.gpus)
    )
    return Composition(nodes), 1


def divisors(number: int) -> tuple[int, ...]:
    """Ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def blocks_of(bounds: Sequence[int]) -> tuple[int, ...]:
    """Blocks of each stage, given its cuts of the L + 2 layers."""
    counts = [stop - start for start, stop in pairwise(bounds)]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)
