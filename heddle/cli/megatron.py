"""A plan as launch arguments of Megatron-LM, where it is regular enough for that trainer.

Megatron runs one template: the same TP degree everywhere, the same number of micro-batches on every
replica, one recomputation, one expert tiling.  Layers may differ by stage.  It numbers its ranks
node by node, and so has two placements: one with the replicas of a stage side by side, one with the
stages of a replica.
Invariant: what is printed is the plan, or nothing is.
Source: Megatron-LM, megatron/training/arguments.py and
megatron/core/transformer/pipeline_parallel_layer_layout.py (grammar of the layout),
megatron/core/parallel_state.py (orders of the ranks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from planner.errors import IrregularPlan
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.wording import counted

STAGES_SIDE_BY_SIDE = "--use-tp-pp-dp-mapping"
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
    order = _rank_order(plan)
    assert order is not None
    gpus = Counter[str]()
    for placed in plan.placement:
        gpus[placed.node] += len(placed.gpus)
    nodes = ", ".join(
        f"{len(names)} x {counted(count, 'GPU')} ({' '.join(names)})"
        for count, rows in groupby(order.nodes, key=gpus.__getitem__)
        for names in [list(rows)]
    )
    arguments = (*_arguments(template, workload), *order.arguments)
    return "\n".join((f"# {template.stages[0].gpu_type}, {nodes}", *arguments))


class RankOrder(NamedTuple):
    """How Megatron numbers the ranks of a plan."""

    nodes: tuple[str, ...]  # in the order of their ranks
    arguments: tuple[str, ...]  # that ask for it


def _rank_order(plan: Plan) -> RankOrder | None:
    """The order of ranks that places stages as the plan does; None: Megatron has none."""
    template = plan.templates[0]
    stages = range(len(template.stages))
    node = {(placed.replica, placed.stage): placed.node for placed in plan.placement}
    numbered = list(range(template.replicas))
    seen = {name: i for i, name in enumerate(dict.fromkeys(p.node for p in plan.placement))}
    by_node = sorted(numbered, key=lambda r: [seen[node[r, s]] for s in stages])
    # whose tokens visit experts of others is said by the numbers of replicas
    for replicas in (numbered,) if template.is_in_lock_step else (numbered, by_node):
        by_stage = _in_runs(node[r, s] for s in stages for r in replicas)
        if by_stage is not None:
            return RankOrder(by_stage, ())
        by_replica = _in_runs(node[r, s] for r in replicas for s in stages)
        if by_replica is not None:
            return RankOrder(by_replica, (STAGES_SIDE_BY_SIDE,))
    return None


def _in_runs(nodes: Iterable[str]) -> tuple[str, ...] | None:
    """The nodes, each once, if none of them comes back after another."""
    found = tuple(name for name, _ in groupby(nodes))
    return found if len(set(found)) == len(found) else None


def _irregularities(plan: Plan, workload: Workload) -> Iterator[str]:
    """Every reason, the most telling first."""
    if len(plan.templates) > 1:
        yield (
            f"it has {len(plan.templates)} templates, Megatron runs one; ask with --max-templates 1"
        )
    template = plan.templates[0]
    tilings = _tilings(template, workload)
    for name, values in (
        ("GPU type", {stage.gpu_type for stage in template.stages}),
        ("TP degree", {stage.tp for stage in template.stages}),
        ("recomputation", {stage.recompute for stage in template.stages}),
        ("expert tiling (EP, ETP)", tilings),
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
    order = _rank_order(plan)
    if order is None:
        yield (
            "its nodes hold neither the replicas of a stage nor the stages of a replica side by "
            "side; ask for other numbers of stages with --max-stages, or for nodes of one size"
        )
    elif order.arguments and any(ep * etp != template.stages[0].tp for ep, etp in tilings):
        yield (
            f"it places the stages of a replica side by side ({STAGES_SIDE_BY_SIDE}), and for that "
            "Megatron wants EP x ETP equal to TP; plan with --no-ep"
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
