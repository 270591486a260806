"""A planner that needs no profile: one replica a GPU, or one pipeline through all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from heddle_operator.state.worth import Worth
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits, gpus_by_type
from planner.model.catalogue import MODELS
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage

SPEEDS = {"demo-fast": 2.0, "demo-slow": 0.01}
MODEL = MODELS["tiny-llama"]


def fake_plan(composition: Composition, workload: Workload, as_pipeline: bool = False) -> Plan:
    """One replica on each GPU, or one pipeline through as many GPUs as there are layers."""
    places = [(n, gpu) for n in composition.nodes for gpu in range(n.gpus)]
    if as_pipeline:
        places = places[: workload.model.layers]
        share, more = divmod(workload.model.layers, len(places))
        stages = tuple(
            Stage(gpu_type=n.gpu_type, tp=1, layers=share + (s < more))
            for s, (n, _) in enumerate(places)
        )
        placement = [PlacedStage(0, 0, s, n.name, (gpu,)) for s, (n, gpu) in enumerate(places)]
        return Plan((FilledTemplate(stages, 1, (workload.global_batch,)),), tuple(placement))
    places = places[: workload.global_batch]
    share, more = divmod(workload.global_batch, len(places))
    templates = tuple(
        FilledTemplate(
            (Stage(gpu_type=n.gpu_type, tp=1, layers=workload.model.layers),),
            1,
            (share + (t < more),),
        )
        for t, (n, _) in enumerate(places)
    )
    return Plan(
        templates,
        tuple(PlacedStage(t, 0, 0, n.name, (gpu,)) for t, (n, gpu) in enumerate(places)),
    )


def speed_of(plan: Plan, composition: Composition) -> float:
    """Throughput: all replicas are as fast as the slowest node lets them be."""
    factors = {node.name: node.speed_factor for node in composition.nodes}
    slowest = min(factors[node] for node in plan.nodes)
    return slowest * sum(SPEEDS[t.stages[0].gpu_type] * t.replicas for t in plan.templates)


def fastest(composition: Composition, limits: GpuLimits) -> Composition:
    """As many GPUs as the limits let a plan use, those of the fastest types first."""
    kept, used = [], Counter[str]()
    order = sorted(composition.nodes, key=lambda n: (-SPEEDS[n.gpu_type] * n.speed_factor, n.name))
    for node in order:
        left = limits.most(node.gpu_type) - used[node.gpu_type]
        if limits.total is not None:
            left = min(left, limits.total - used.total())
        if left > 0:
            kept.append(replace(node, gpus=min(node.gpus, left)))
            used[node.gpu_type] += kept[-1].gpus
    return Composition(tuple(kept))


def worth_of(composition: Composition) -> Worth:
    """Each GPU as fast as its type."""
    found = gpus_by_type(composition)
    rows = (
        (name, tuple((n, SPEEDS[name] * n) for n in range(1, found[name] + 1))) for name in found
    )
    return Worth(tuple(sorted(rows)))


def without_stragglers(composition: Composition) -> Composition:
    """The nodes that are fastest together, where the slowest one holds up all."""
    ordered = sorted(composition.nodes, key=lambda node: -node.speed_factor)
    if not ordered or ordered[-1].speed_factor == ordered[0].speed_factor:
        return composition

    def together(count: int) -> float:
        kept = ordered[:count]
        gpus = sum(SPEEDS[node.gpu_type] * node.gpus for node in kept)
        return float(kept[-1].speed_factor * gpus)

    best = max(range(1, len(ordered) + 1), key=lambda count: (together(count), count))
    return Composition(tuple(ordered[:best]))
