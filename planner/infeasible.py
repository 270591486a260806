"""Say why no plan fits: which term binds, and by how much.

Invariant: one sentence, with what was found, what is allowed, and what to do.
"""

from __future__ import annotations

from planner.fill import Option
from planner.memory import StageSlot, stage_memory
from planner.neighbourhood import options, packs
from planner.placement import room_of
from planner.profile import Profile
from planner.request import PlanRequest


def why_infeasible(request: PlanRequest, profile: Profile) -> str:
    """One sentence for a request that no plan answers."""
    composition, workload = request.composition, request.workload
    if not composition.nodes:
        return "the composition has no GPU; add a node"
    choices = [
        choice
        for choice in options(composition, workload.model, profile)
        if choice[0] in profile.types
    ]
    if not choices:
        return (
            f"none of the GPU types {', '.join(composition.gpu_types)} has a profile for "
            f"{workload.model.name}; profiled are {', '.join(sorted(profile.types))}"
        )
    smallest = min(b for kind, _ in choices for b in profile.micro_batches(kind))
    if workload.global_batch < smallest:
        return (
            f"global batch {workload.global_batch} is below the smallest profiled micro-batch "
            f"{smallest}; raise the batch"
        )
    return _memory(request, profile, choices, smallest)


def _memory(request: PlanRequest, profile: Profile, choices: list[Option], micro_batch: int) -> str:
    """The even template that comes nearest to fitting, and what its fullest GPU lacks."""
    workload = request.workload
    room = room_of(request.composition)
    nearest: tuple[int, int, Option, int] | None = None
    for choice in choices:
        gpu_type, tp = choice
        usable = profile.gpu_type(gpu_type).usable_bytes
        for depth in range(1, request.deepest + 1):
            if not packs((((choice,) * depth, 1),), room):
                break
            layers = -(-workload.model.layers // depth)
            peak = max(
                stage_memory(
                    workload,
                    profile,
                    StageSlot(gpu_type, tp, micro_batch, 1, depth, index, workload.recompute),
                    layers,
                ).peak_bytes
                for index in range(depth)
            )
            if nearest is None or peak - usable < nearest[0]:
                nearest = (peak - usable, peak, choice, depth)
    assert nearest is not None
    short, peak, (gpu_type, tp), depth = nearest
    return (
        f"memory binds: with {depth} stage(s) of TP {tp} on {gpu_type}, the most that this "
        f"composition and D_max {request.deepest} allow, {workload.model.name} needs "
        f"{peak:,} bytes on a GPU at micro-batch {micro_batch}, {peak - short:,} are usable "
        f"({short:,} short); add GPUs, or larger ones"
    )
