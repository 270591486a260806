"""Say why no plan fits: which term binds, and by how much.

Invariant: one sentence, with what was found, what is allowed, and what to do.
"""

from __future__ import annotations

from planner.memory import StageSlot, stage_memory
from planner.neighbourhood import options
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


def _memory(
    request: PlanRequest, profile: Profile, choices: list[tuple[str, int]], micro_batch: int
) -> str:
    """The least memory that the model needs when every GPU takes part, against what there is."""
    composition, workload = request.composition, request.workload
    room = sum(profile.gpu_type(n.gpu_type).usable_bytes * n.gpus for n in composition.nodes)
    gpu_type, tp = max(choices, key=lambda choice: (choice[1], choice[0]))
    depth = min(request.deepest, max(1, composition.gpus // tp))
    needed = 0
    for index in range(depth):
        slot = StageSlot(gpu_type, tp, micro_batch, 1, depth, index)
        layers = -(-workload.model.layers // depth)
        needed += tp * stage_memory(workload, profile, slot, layers).peak_bytes
    short = max(0, needed - room)
    return (
        f"memory binds: {workload.model.name} at micro-batch {micro_batch} needs about "
        f"{needed:,} bytes over {depth} stage(s) of TP {tp}, the {composition.gpus} GPU(s) offer "
        f"{room:,} ({short:,} short in all, or on the fullest GPU); add GPUs or larger ones"
    )
