"""Every plan of two or three GPUs, with no cut, no symmetry and no floor, for brute force to equal.

All decisions of all replicas are multiplied out, each plan is priced, and the best is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product

from planner.cluster.composition import Composition
from planner.cost.evaluate import cost_of
from planner.errors import UnprofiledConfiguration
from planner.model.workload import RECOMPUTATIONS
from planner.placement.place import holders_by_layer
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage, faults
from planner.profiles.profile import Profile
from planner.request import PlanRequest


def best_of_all(request: PlanRequest, profile: Profile) -> tuple[int, float] | None:
    """(holders up to the number asked, negated; seconds) of the best plan; None if none fits."""
    best = None
    for plan in _plans(request, profile):
        if faults(plan, request.workload, request.composition):
            continue
        try:
            priced = cost_of(plan, request.workload, request.composition, profile)
        except UnprofiledConfiguration:
            continue
        fits = all(
            row.peak_memory_bytes <= profile.gpu_type(stage.gpu_type).usable_bytes
            for replica in priced.replicas
            for row, stage in zip(
                replica.stages, plan.templates[replica.template].stages, strict=True
            )
        )
        rank = (
            -min(holders_by_layer(request.workload.model, plan), request.min_holders),
            priced.iteration_s,
        )
        if fits and (best is None or rank < best):
            best = rank
    return best


def _plans(request: PlanRequest, profile: Profile) -> Iterator[Plan]:
    gpus = [(node, gpu) for node in request.composition.nodes for gpu in range(node.gpus)]
    kinds = list(_templates(request, profile, len(gpus)))
    for number in range(1, len(gpus) + 1):
        for bag in product(kinds, repeat=number):
            if sum(template.gpus * template.replicas for template in bag) > len(gpus):
                continue
            if sum(template.samples for template in bag) == request.workload.global_batch:
                for where in _placements(bag, request.composition):
                    yield Plan(bag, where).with_zero(request.workload.zero)


def _templates(request: PlanRequest, profile: Profile, most: int) -> Iterator[FilledTemplate]:
    """Every filled template of at most that many GPUs."""
    batch, layers = request.workload.global_batch, request.workload.model.layers
    types = request.composition.gpu_types
    sizes = sorted({b for kind in types for b in profile.micro_batches(kind)})
    degrees = sorted({tp for kind in types for tp in profile.tp_degrees(kind)})
    asked: str = request.workload.recompute
    hows = RECOMPUTATIONS if asked == "auto" else (asked,)
    tilings = [(1, 0)]
    if request.workload.model.experts is not None:
        tilings += list(product(range(1, most + 1), repeat=2))
    for depth in range(1, most + 1):
        for cuts in combinations(range(1, layers), depth - 1):
            split = [stop - start for start, stop in pairwise((0, *cuts, layers))]
            for options in product(product(types, degrees, hows, tilings), repeat=depth):
                stages = tuple(
                    Stage(gpu_type=kind, tp=tp, layers=count, recompute=how, ep=ep, etp=etp)
                    for (kind, tp, how, (ep, etp)), count in zip(options, split, strict=True)
                )
                gpus = sum(stage.tp for stage in stages)
                # EP 1 with ETP = TP is the plain cut, and a stage without experts has no other
                first = [sum(split[:s]) + 1 for s in range(depth)]
                kinds = [
                    request.workload.model.kinds_of(start, start + count)
                    for start, count in zip(first, split, strict=True)
                ]
                odd = any(
                    stage.etp and (not stage.is_tiled or "moe_block" not in kind)
                    for stage, kind in zip(stages, kinds, strict=True)
                )
                if odd:
                    continue
                for replicas in range(1, most // gpus + 1):
                    for b in sizes:
                        for counts in product(range(1, batch // b + 1), repeat=replicas):
                            if b * sum(counts) <= batch:
                                yield FilledTemplate(stages, b, counts)


def _placements(
    bag: tuple[FilledTemplate, ...], composition: Composition
) -> Iterator[tuple[PlacedStage, ...]]:
    """Every node for every stage; experts are cut inside a node only."""
    slots = [
        (t, r, s, stage)
        for t, template in enumerate(bag)
        for r in range(template.replicas)
        for s, stage in enumerate(template.stages)
    ]
    for nodes in product(composition.nodes, repeat=len(slots)):
        free = {node.name: list(range(node.gpus)) for node in composition.nodes}
        placed = []
        for (t, r, s, stage), node in zip(slots, nodes, strict=True):
            if node.gpu_type != stage.gpu_type or len(free[node.name]) < stage.tp:
                break
            gpus = tuple(free[node.name].pop(0) for _ in range(stage.tp))
            placed.append(PlacedStage(t, r, s, node.name, gpus))
        else:
            if _cuts_inside_nodes(bag, placed):
                yield tuple(placed)


def _cuts_inside_nodes(bag: tuple[FilledTemplate, ...], placed: list[PlacedStage]) -> bool:
    for t, template in enumerate(bag):
        for s, stage in enumerate(template.stages):
            devices = [
                row.node
                for row in placed
                if (row.template, row.stage) == (t, s)
                for _ in range(stage.tp)
            ]
            if stage.is_tiled:
                runs = [
                    devices[i : i + stage.expert_tp]
                    for i in range(0, len(devices), stage.expert_tp)
                ]
                if any(len(set(run)) > 1 for run in runs):
                    return False
    return True
