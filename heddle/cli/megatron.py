"""A plan as launch arguments of Megatron-LM, where it is regular enough for that trainer.

Megatron runs one template: the same TP degree everywhere, the same number of micro-batches on every
replica, one recomputation, one expert tiling.  Layers may differ by stage.
Invariant: what is printed is the plan, or nothing is.
Source: Megatron-LM, megatron/training/arguments.py and
megatron/core/transformer/pipeline_parallel_layer_layout.py (grammar of the layout).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from planner.errors import IrregularPlan
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.wording import counted

PRECISION = {"fp32": (), "fp16": ("--fp16",), "bf16": ("--bf16",)}
RECOMPUTATION = {
    "none": (),
    "selective": ("--recompute-granularity selective",),
    "full": (
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ),
}


def megatron_arguments(plan: Plan, workload: Workload) -> str:
    """The arguments, one a line, after a comment that says on which GPUs.

    Raises:
        IrregularPlan: Megatron cannot run the plan; the message says what is irregular.
    """
    for reason in _irregularities(plan, workload):
        raise IrregularPlan(f"Megatron cannot run this plan: {reason}")
    template = plan.templates[0]
    gpus = Counter[str]()
    for placed in plan.placement:
        gpus[placed.node] += len(placed.gpus)
    nodes = ", ".join(
        f"{len(names)} x {counted(count, 'GPU')} ({' '.join(names)})"
        for count, rows in groupby(sorted(gpus, key=lambda n: (-gpus[n], n)), key=gpus.__getitem__)
        for names in [list(rows)]
    )
    return "\n".join((f"# {template.stages[0].gpu_type}, {nodes}", *_arguments(template, workload)))


def _irregularities(plan: Plan, workload: Workload) -> Iterator[str]:
    """Every reason, the most telling first."""
    if len(plan.templates) > 1:
        yield (
            f"it has {len(plan.templates)} templates, Megatron runs one; ask with --max-templates 1"
        )
    template = plan.templates[0]
    for name, values in (
        ("GPU type", {stage.gpu_type for stage in template.stages}),
        ("TP degree", {stage.tp for stage in template.stages}),
        ("recomputation", {stage.recompute for stage in template.stages}),
        ("expert tiling (EP, ETP)", _tilings(template, workload)),
        ("number of micro-batches by replica", set(template.micro_batches)),
    ):
        if len(values) > 1:
            listed = ", ".join(map(str, sorted(values)))
            yield f"its {name} is not the same everywhere ({listed})"
    experts = workload.model.experts is not None
    if experts and template.stages[0].tp > 1 and not workload.sequence_parallel:
        yield (
            "with experts and TP above 1 Megatron wants sequence parallelism; plan with "
            "--sequence-parallel"
        )


def _tilings(template: FilledTemplate, workload: Workload) -> set[tuple[int, int]]:
    """(EP, ETP) of the stages that hold experts."""
    cuts = template.layer_bounds()
    return {
        (stage.ep, stage.expert_tp)
        for s, stage in enumerate(template.stages)
        if "moe_block" in workload.model.kinds_of(cuts[s], cuts[s + 1])
    }


def _arguments(template: FilledTemplate, workload: Workload) -> Iterator[str]:
    """Every argument with its value."""
    stage = template.stages[0]
    yield f"--num-layers {workload.model.layers}"
    yield f"--seq-length {workload.sequence_length}"
    yield f"--tensor-model-parallel-size {stage.tp}"
    yield f"--pipeline-model-parallel-size {len(template.stages)}"
    yield from _layers(template.stages)
    yield f"--micro-batch-size {template.micro_batch}"
    yield f"--global-batch-size {workload.global_batch}"
    for ep, etp in _tilings(template, workload):
        yield f"--expert-model-parallel-size {ep}"
        yield f"--expert-tensor-parallel-size {etp}"
    yield from RECOMPUTATION[stage.recompute]
    yield from PRECISION[workload.precision]
    if workload.sequence_parallel and stage.tp > 1:
        yield "--sequence-parallel"
    if template.zero:
        yield "--use-distributed-optimizer"


def _layers(stages: Sequence[Stage]) -> Iterator[str]:
    """How the layers are split, where Megatron would not split them so by itself."""
    layers = [stage.layers for stage in stages]
    if len(set(layers)) == 1:
        return
    if len(set(layers[1:-1])) <= 1:
        yield f"--decoder-first-pipeline-num-layers {layers[0]}"
        yield f"--decoder-last-pipeline-num-layers {layers[-1]}"
        return
    middle = "|".join(f"t*{count}" for count in layers)
    yield f'--pipeline-model-parallel-layout "E{middle}L"'
