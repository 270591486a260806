"""Peak memory of one GPU of a stage, kind by kind, and the number of layers that fit.

Invariant: from one block on, linear in the number of blocks before and at the optimizer step, so
that a cap on layers is exact.
Source: Heddle, section 5.2 (memory validation); the rule `worker` is what the worker allocates.
Legend: b micro-batch, M micro-batches of the replica, D depth, stage s = 0..D-1, n replicas.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from planner.cluster.gpu_types import HARDWARE
from planner.cost import formulas
from planner.model.shape import Kind, ModelShape
from planner.model.tensors import expert_numel, layer_numel, tied_numel
from planner.model.workload import MemoryRule, Precision, Workload
from planner.plans.plan import FilledTemplate, Plan
from planner.plans.state_rule import PARTS, copies, element_bytes
from planner.profiles.entries import GROUP_BYTES, MOST_GROUPS, GpuType, LayerCost
from planner.profiles.operators import VALUE_BYTES
from planner.profiles.profile import Profile

LOGIT_BYTES = 8  # fp32 values, and their gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Memory of a system for each parameter, and its buffers.

    Attributes:
        weight: bytes in the training precision.
        gradient: bytes of the sum over micro-batches.
        optimizer: bytes of two fp32 moments; mixed precision adds an fp32 master, which fp32
            weights are themselves.
        step: bytes that the optimizer step has besides, for each parameter of a bucket.
        bucket: most parameters that are copied for the gradient sum, or stepped, at a time.
        messages: of a micro-batch, that a stage with a neighbour holds on their way.
    """

    weight: int
    gradient: int
    optimizer: int
    step: int
    bucket: float
    messages: int


WORKER_BUCKET = 1 << 22  # 16 MiB in fp32, near the best size of collectives
# DeepSpeed sums gradients in flat copies of at most this many elements; its fp32 engine copies all.
# At the step its fp16 gradients become fp32: its ZeRO optimizer flattens and casts one group of
# parameters at a time, and groups of a third of a bucket keep within that of a bucket's gradients.
DEEPSPEED_BUCKET = 500_000_000


def _allocated(precision: Precision) -> Rule:
    """What the worker allocates: the weight that is multiplied, and the rest of the state."""
    copy = element_bytes(copies(precision))
    weight = copy or element_bytes(("weight",))
    return Rule(
        weight=weight,
        gradient=4,
        optimizer=element_bytes(PARTS) + copy - weight,
        step=8,
        bucket=WORKER_BUCKET,
        messages=1,
    )


RULES: Mapping[MemoryRule, Mapping[Precision, Rule]] = {
    "worker": {precision: _allocated(precision) for precision in get_args(Precision)},
    "paper": {
        "fp32": Rule(weight=4, gradient=4, optimizer=8, step=0, bucket=math.inf, messages=2),
        "fp16": Rule(
            weight=2, gradient=2, optimizer=12, step=4, bucket=DEEPSPEED_BUCKET, messages=2
        ),
        "bf16": Rule(
            weight=2, gradient=4, optimizer=12, step=0, bucket=DEEPSPEED_BUCKET, messages=2
        ),
    },
}


def rule_of(workload: Workload) -> Rule:
    """The rule by which a workload's memory is counted."""
    return RULES[workload.memory][workload.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSlot:
    """Where a stage stands, as far as its memory depends on it."""

    gpu_type: str  # device type
    tp: int  # TP degree
    micro_batch: int  # b
    micro_batches: int  # M of the replica
    depth: int  # D of its template
    index: int  # s, from 0
    recompute: str = "none"  # what is computed again in the backward pass
    replicas: int = 1  # n of the template, over which ZeRO 1 cuts the optimizer
    ep: int = 1  # degree over which whole experts are spread
    etp: int = 0  # degree over which each expert is cut; 0: the TP degree
    # its first block; unknown during a fill, where all blocks count as the model's last kind
    start: int | None = None

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

    @property
    def expert_ways(self) -> int:
        """Into how many parts the experts of a block are cut: EP x ETP."""
        return self.ep * (self.etp or self.tp)

    def blocks(self, model: ModelShape, layers: int) -> dict[Kind, int]:
        """How many blocks of each kind are here."""
        if self.start is None:
            return {model.block_kinds[-1]: layers}
        return model.kinds_of(self.start, self.start + layers)


def slot_of(template: FilledTemplate, index: int, micro_batches: int) -> StageSlot:
    """Where a stage of a replica with that many micro-batches stands."""
    stage = template.stages[index]
    return StageSlot(
        gpu_type=stage.gpu_type,
        tp=stage.tp,
        micro_batch=template.micro_batch,
        micro_batches=micro_batches,
        depth=len(template.stages),
        index=index,
        recompute=stage.recompute,
        replicas=template.replicas,
        ep=stage.ep,
        etp=stage.etp,
        start=max(1, template.layer_bounds()[index]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one GPU of a stage, by kind."""

    weights: int  # in the training precision
    gradients: int  # of the weights
    optimizer: int  # moments, and master weights in mixed precision
    activations: int  # kept for all micro-batches in flight
    boundary: int  # one more activation between two stages
    logits: int  # on the last stage, with their gradient
    communication: int  # buffers of the gradient sum and of messages to neighbours
    working: int = 0  # what one layer has besides while it is recomputed
    # of a bucket at the optimizer step, when activations, logits and `working` are free
    transient: int = 0

    @property
    def state_bytes(self) -> int:
        """Memory that stays from step to step."""
        return formulas.state_bytes(
            self.weights, self.gradients, self.optimizer, self.communication
        )

    @property
    def peak_bytes(self) -> int:
        """The most of an iteration."""
        return formulas.peak_bytes(
            self.state_bytes,
            self.activations,
            self.boundary,
            self.logits,
            self.working,
            self.transient,
        )


def boundary_bytes(workload: Workload, micro_batch: int) -> int:
    """Size of the activation (or of its gradient) of one micro-batch between two layers."""
    values = micro_batch * workload.sequence_length * workload.model.hidden
    return values * VALUE_BYTES[workload.precision]


def kept_boundary_bytes(workload: Workload, micro_batch: int, tp: int) -> int:
    """Of that, what each GPU of a TP group keeps: a slice with sequence parallelism."""
    whole = boundary_bytes(workload, micro_batch)
    return whole // tp if workload.sequence_parallel else whole


def logits_bytes(workload: Workload, micro_batch: int, tp: int) -> int:
    """The logits of a micro-batch with their gradient, on one GPU of the last stage."""
    tokens = micro_batch * workload.sequence_length
    return tokens * workload.model.padded_vocab // tp * LOGIT_BYTES


def slot_parameters(model: ModelShape, slot: StageSlot, layers: int) -> tuple[int, int]:
    """(parameters besides routed experts, of routed experts) that one rank of the stage holds."""
    blocks = slot.blocks(model, layers)
    cut_experts = expert_numel(model) // slot.tp
    dense = 0
    for kind, count in blocks.items():
        example = model.layers if kind == model.block_kinds[-1] else 1  # a block of that kind
        held = layer_numel(model, example, slot.tp)
        dense += count * (held - cut_experts if kind == "moe_block" else held)
    if slot.is_first:
        dense += layer_numel(model, 0, slot.tp)
    if slot.is_last:
        dense += layer_numel(model, model.layers + 1, slot.tp)
    if slot.is_first and slot.is_last:
        dense -= tied_numel(model, slot.tp)
    return dense, blocks.get("moe_block", 0) * (expert_numel(model) // slot.expert_ways)


def stage_memory(workload: Workload, profile: Profile, slot: StageSlot, layers: int) -> StageMemory:
    """Peak memory of one GPU of the stage with that many blocks.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the stage.
    """
    b, tp = slot.micro_batch, slot.tp
    kept, working = 0, 0
    for cost, count in _block_costs(workload, profile, slot, layers):
        kept += count * cost.kept_bytes(slot.recompute)
        working = max(working, cost.working_bytes(slot.recompute) if count else 0)
    if slot.is_first:
        kept += profile.layer_cost("embedding", slot.gpu_type, tp, b).activation_bytes
    logits = 0
    if slot.is_last:
        kept += profile.layer_cost("head", slot.gpu_type, tp, b).activation_bytes
        logits = logits_bytes(workload, b, tp)
    dense, experts = slot_parameters(workload.model, slot, layers)
    parameters = dense + experts
    rule = rule_of(workload)
    boundary = kept_boundary_bytes(workload, b, tp)
    messages = rule.messages if slot.depth > 1 else 0
    bucket = int(min(parameters, rule.bucket))
    communication = formulas.communication_bytes(bucket, rule.gradient, boundary, messages)
    stepped = stepped_parameters(workload, slot, layers)
    return StageMemory(
        weights=parameters * rule.weight,
        gradients=parameters * rule.gradient,
        optimizer=stepped * rule.optimizer,
        activations=slot.in_flight * kept,
        boundary=boundary,
        logits=logits,
        communication=communication,
        working=working,
        transient=int(formulas.transient_bytes(stepped, rule.bucket, rule.step))
        if rule.step
        else 0,
    )


def _block_costs(
    workload: Workload, profile: Profile, slot: StageSlot, layers: int
) -> list[tuple[LayerCost, int]]:
    """(cost, count) of each kind of block of the stage."""
    costs = []
    for kind, count in slot.blocks(workload.model, layers).items():
        if kind == "moe_block":
            cost = profile.tiled_cost(
                slot.gpu_type, slot.tp, slot.micro_batch, slot.ep, slot.etp or slot.tp
            )
        else:
            cost = profile.layer_cost(kind, slot.gpu_type, slot.tp, slot.micro_batch)
        costs.append((cost, count))
    return costs


def stepped_parameters(workload: Workload, slot: StageSlot, layers: int) -> int:
    """Parameters whose optimizer state one rank holds: ZeRO 1 cuts it over the copies of each."""
    dense, experts = slot_parameters(workload.model, slot, layers)
    if workload.zero == 0:
        return dense + experts
    copies = formulas.expert_copies(slot.replicas, slot.tp, slot.expert_ways)
    return formulas.zero_cut(dense, slot.replicas) + formulas.zero_cut(experts, copies)


def usable_bytes(workload: Workload, gpu: GpuType) -> int:
    """Memory of a GPU that a plan may fill; communicators of two epochs stand while one is left."""
    return gpu.usable_bytes - MOST_GROUPS * group_bytes(workload, gpu)


def group_bytes(workload: Workload, gpu: GpuType) -> int:
    """Memory of a GPU that NCCL holds for each communicator.

    As measured, else as modelled on a real GPU type.  Ranks count by it too, before they prepare a
    change.  The paper's rule and the staged wire know no communicators.
    """
    if workload.memory != "worker" or workload.wire != "nccl":
        return 0
    return gpu.group_bytes or (GROUP_BYTES if gpu.name in HARDWARE else 0)


def plan_group_bytes(plan: Plan, workload: Workload, profile: Profile) -> dict[str, int]:
    """{GPU type of a plan: `group_bytes`}, of those that hold any."""
    types = {stage.gpu_type for template in plan.templates for stage in template.stages}
    found = {name: group_bytes(workload, profile.gpu_type(name)) for name in sorted(types)}
    return {name: held_bytes for name, held_bytes in found.items() if held_bytes}


def fits(workload: Workload, profile: Profile, slot: StageSlot, layers: int) -> bool:
    """Whether that many blocks fit on the GPUs of the stage."""
    peak = stage_memory(workload, profile, slot, layers).peak_bytes
    return peak <= usable_bytes(workload, profile.gpu_type(slot.gpu_type))


def layers_that_fit(workload: Workload, profile: Profile, slot: StageSlot) -> int:
    """The most blocks that the stage can hold, 0 if not even one; at most L."""
    counts = range(1, workload.model.layers + 1)
    return bisect_left(counts, True, key=lambda n: not fits(workload, profile, slot, n))
