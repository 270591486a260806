"""What one GPU of a stage holds at its peak, kind by kind, and how many layers fit.

Invariant: linear in the number of blocks, so that a cap on layers is exact.
Source: Heddle, section 5.2 (memory validation); bytes per parameter are what the worker allocates.
Legend: b micro-batch, M micro-batches of the replica, D depth, stage s = 0..D-1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from planner.profile import Profile
from planner.tensors import layer_numel
from planner.workload import Workload

WEIGHT_BYTES = 4  # fp32
GRADIENT_BYTES = 4  # fp32
OPTIMIZER_BYTES = 8  # two fp32 moments; in fp32 the weights are their own master
VALUE_BYTES = 4  # fp32 activations, gradients and messages


@dataclass(frozen=True, slots=True)
class StageSlot:
    """Where a stage stands, as far as its memory depends on it.

    Attributes:
        gpu_type: device type.
        tp: TP degree.
        micro_batch: b.
        micro_batches: M of the replica.
        depth: D of its template.
        index: s, from 0.
    """

    gpu_type: str
    tp: int
    micro_batch: int
    micro_batches: int
    depth: int
    index: int

    @property
    def is_first(self) -> bool:
        """Whether the embedding is here."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the head is here."""
        return self.index == self.depth - 1

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations live at once: min(M, stages from here to the end)."""
        return min(self.micro_batches, self.depth - self.index)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one GPU of a stage, by kind."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    boundary: int
    logits: int
    communication: int

    @property
    def peak_bytes(self) -> int:
        """All kinds together."""
        return sum(int(getattr(self, field.name)) for field in fields(self))


def boundary_bytes(workload: Workload, micro_batch: int) -> int:
    """Size of the activation (or of its gradient) of one micro-batch between two layers."""
    return micro_batch * workload.sequence_length * workload.model.hidden * VALUE_BYTES


def stage_parameters(
    workload: Workload, tp: int, layers: int, *, is_first: bool, is_last: bool
) -> int:
    """Parameters that one rank of a stage holds."""
    model = workload.model
    count = layers * layer_numel(model, 1, tp)
    if is_first:
        count += layer_numel(model, 0, tp)
    if is_last:
        count += layer_numel(model, model.layers + 1, tp)
    return count


def stage_memory(workload: Workload, profile: Profile, slot: StageSlot, layers: int) -> StageMemory:
    """What one GPU of the stage holds at its peak with that many blocks.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the stage.
    """
    b, tp = slot.micro_batch, slot.tp
    kept = layers * profile.layer_cost("block", slot.gpu_type, tp, b).activation_bytes
    if slot.is_first:
        kept += profile.layer_cost("embedding", slot.gpu_type, tp, b).activation_bytes
    logits = 0
    if slot.is_last:
        kept += profile.layer_cost("head", slot.gpu_type, tp, b).activation_bytes
        # values and their gradient
        logits = 2 * b * workload.sequence_length * workload.model.vocab // tp * VALUE_BYTES
    parameters = stage_parameters(
        workload, tp, layers, is_first=slot.is_first, is_last=slot.is_last
    )
    boundary = boundary_bytes(workload, b)
    # gradients travel as flat copies; a pipeline also has one buffer to send and one to receive
    communication = parameters * GRADIENT_BYTES + (2 * boundary if slot.depth > 1 else 0)
    return StageMemory(
        parameters * WEIGHT_BYTES,
        parameters * GRADIENT_BYTES,
        parameters * OPTIMIZER_BYTES,
        slot.in_flight * kept,
        boundary,
        logits,
        communication,
    )


def fits(workload: Workload, profile: Profile, slot: StageSlot, layers: int) -> bool:
    """Whether that many blocks fit on the GPUs of the stage."""
    peak = stage_memory(workload, profile, slot, layers).peak_bytes
    return peak <= profile.gpu_type(slot.gpu_type).usable_bytes


def layers_that_fit(workload: Workload, profile: Profile, slot: StageSlot) -> int:
    """The most blocks that the stage can hold, 0 if not even one; at most L."""
    none, one = (stage_memory(workload, profile, slot, n).peak_bytes for n in (0, 1))
    room = profile.gpu_type(slot.gpu_type).usable_bytes - none
    return max(0, min(workload.model.layers, room // (one - none)))
