"""A planner that needs no profile: one replica a GPU, or one pipeline through all."""

from __future__ import annotations

from planner.cluster.composition import Composition
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
        stages = tuple(Stage(n.gpu_type, 1, share + (s < more)) for s, (n, _) in enumerate(places))
        placement = [PlacedStage(0, 0, s, n.name, (gpu,)) for s, (n, gpu) in enumerate(places)]
        return Plan((FilledTemplate(stages, 1, (workload.global_batch,)),), tuple(placement))
    places = places[: workload.global_batch]
    share, more = divmod(workload.global_batch, len(places))
    templates = tuple(
        FilledTemplate((Stage(n.gpu_type, 1, workload.model.layers),), 1, (share + (t < more),))
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
