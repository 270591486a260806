"""What a baseline's own formula says of a plan that is not its own, where it can say the plan.

Metis, Sailor and Espresso say plans of one template, Espresso with TP 1 alone.  HexiScale takes
every replica for a pipeline.  AMP has one TP degree and one order of ranks: it says none of them.
Invariant: a baseline's own plan has here the price by which it was ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

from benchmarks.baselines.espresso.placer import Placed, Placer
from benchmarks.baselines.hexiscale.pipeline import TypedStage
from benchmarks.baselines.hexiscale.search import plan_seconds
from benchmarks.baselines.interface import Question
from benchmarks.baselines.layout import Grid, Layout
from benchmarks.baselines.metis.costs import Stages, iteration_seconds
from benchmarks.baselines.quantities import Quantities
from benchmarks.baselines.sailor.rules import stage_seconds
from benchmarks.baselines.sailor.search import ring_seconds


def cuts_of(grid: Grid) -> tuple[int, ...]:
    """Cuts of the L + 2 layers."""
    blocks = [stage.blocks for stage in grid.stages]
    blocks[0] += 1
    blocks[-1] += 1
    return (0, *accumulate(blocks))


def _one_grid(layout: Layout) -> Grid | None:
    """The grid of a plan whose stages have one TP degree each; None of any other."""
    if len(layout.grids) != 1:
        return None
    (grid,) = layout.grids
    degrees = ({group.tp for group in stage.groups} for stage in grid.stages)
    return grid if all(len(tp) == 1 for tp in degrees) else None


def metis_seconds(layout: Layout, question: Question) -> float | None:
    """By Metis' formula."""
    grid = _one_grid(layout)
    if grid is None:
        return None
    numbers = Quantities(question)
    gpus = [(group.gpu_type, gpu) for s in grid.stages for group in s.groups for gpu in group.gpus]
    stages, works, first = Stages(numbers, gpus, as_released=False), [], 0
    for stage in grid.stages:
        tp = stage.groups[0].tp
        samples = sum(group.samples for group in stage.groups)
        work = stages.work(first, tp * len(stage.groups), tp, samples)
        if work is None:
            return None
        works.append(work)
        first += tp * len(stage.groups)
    micro_batches = max(grid.micro_batches)
    return iteration_seconds(numbers, works, cuts_of(grid), micro_batches, as_released=False)


def sailor_seconds(layout: Layout, question: Question) -> float | None:
    """By Sailor's formula; replicas of one GPU type in a stage share a TP degree."""
    if len(layout.grids) != 1:
        return None
    (grid,) = layout.grids
    numbers, cuts = Quantities(question), cuts_of(grid)
    size, dp = grid.stages[0].groups[0].samples, len(grid.stages[0].groups)
    micro_batches = -(-question.workload.global_batch // (size * dp))
    kinds = [sorted({group.gpu_type for group in stage.groups}) for stage in grid.stages]
    times, p2p, rings = [], [0.0] * len(grid.stages), []
    for s, stage in enumerate(grid.stages):
        options = {(group.gpu_type, group.tp) for group in stage.groups}
        if len(options) != len(kinds[s]):
            return None
        times.append(
            max(stage_seconds(numbers, kind, tp, size, *cuts[s : s + 2]) for kind, tp in options)
        )
        if s + 1 < len(grid.stages):
            both = kinds[s] + kinds[s + 1]
            rate = min(numbers.between(a, b) for a in both for b in both)
            p2p[s] = 2 * numbers.boundary_bytes(size) / rate
        rate = min(numbers.between(a, b) for a in kinds[s] for b in kinds[s])
        held = sum(numbers.parameters(1)[cuts[s] : cuts[s + 1]]) * numbers.value_bytes
        rings.append(float(ring_seconds(held, dp, rate)))
    slowest = max(time + message for time, message in zip(times, p2p, strict=True))
    own_s = (micro_batches - 1) * slowest + sum(times) + 2 * sum(p2p) + max(rings)
    if len(times) > 1:
        return own_s
    profile = question.profile
    return own_s + max(
        profile.gpu_type(group.gpu_type).optimizer_s_per_parameter
        * sum(numbers.parameters(group.tp))
        for group in grid.stages[0].groups
    )


def espresso_seconds(layout: Layout, question: Question) -> float | None:
    """By Espresso's formula; TP 1 and one GPU type a stage."""
    grid = _one_grid(layout)
    if grid is None or any(group.tp > 1 for stage in grid.stages for group in stage.groups):
        return None
    kinds = [{group.gpu_type for group in stage.groups} for stage in grid.stages]
    if any(len(found) > 1 for found in kinds):
        return None
    first = grid.stages[0].groups
    if question.workload.global_batch % (first[0].samples * len(first)):
        return None
    placer = Placer(Quantities(question), first[0].samples, len(first))
    stages = tuple((s.groups[0].gpu_type, s.blocks) for s in grid.stages)
    return placer.seconds(Placed(stages))


def hexiscale_seconds(layout: Layout, question: Question) -> float | None:
    """By HexiScale's formula, with the micro-batch and recomputation of the plan."""
    numbers = Quantities(question, layout.recompute)
    rows = []
    for grid in layout.grids:
        for r, micro_batches in enumerate(grid.micro_batches):
            groups = [stage.groups[r] for stage in grid.stages]
            stages = tuple(TypedStage(group.gpu_type, group.gpus) for group in groups)
            blocks = tuple(stage.blocks for stage in grid.stages)
            rows.append(((stages, blocks), groups[0].samples, micro_batches))
    return plan_seconds(numbers, rows)


OWN_PRICES: Mapping[str, Callable[[Layout, Question], float | None]] = {
    "espresso": espresso_seconds,
    "hexiscale": hexiscale_seconds,
    "metis": metis_seconds,
    "sailor": sailor_seconds,
}
