"""Improve the placement of a plan on a few nodes: swap stages between nodes while that helps.

Placement rules (`planner.placement`) are quick and good for many nodes; on a few, which stage sits
on the straggler, or beside which other, can matter more than all else.
Invariant: the result is never slower, and has the same templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from planner.candidate import Candidate, Judge
from planner.findings import Findings
from planner.plan import PlacedStage, Plan


def rearranged(
    candidate: Candidate, judge: Judge, findings: Findings, late: Callable[[], bool]
) -> Candidate:
    """The best plan that single swaps lead to.

    Args:
        candidate: with a recipe.
        judge: prices.
        findings: says which of two candidates is better.
        late: whether the time is up.
    """
    best = candidate
    improved = True
    while improved and not late():
        improved = False
        for placement in _swaps(best.plan, judge):
            if late():
                break
            found = judge.priced(candidate.recipe or (), Plan(best.plan.templates, placement))
            if found is not None and findings.rank(found) < findings.rank(best):
                best, improved = found, True
                break
    return best


def _swaps(plan: Plan, judge: Judge) -> Iterator[tuple[PlacedStage, ...]]:
    """Two stages that change places, or one that moves to idle GPUs."""
    stages = {(p.template, p.replica, p.stage): index for index, p in enumerate(plan.placement)}
    kinds = [plan.templates[p.template].stages[p.stage].gpu_type for p in plan.placement]
    assert len(stages) == len(kinds)
    for one, other in combinations(range(len(kinds)), 2):
        a, b = plan.placement[one], plan.placement[other]
        if kinds[one] == kinds[other] and len(a.gpus) == len(b.gpus) and a.node != b.node:
            rows = list(plan.placement)
            rows[one] = PlacedStage(a.template, a.replica, a.stage, b.node, b.gpus)
            rows[other] = PlacedStage(b.template, b.replica, b.stage, a.node, a.gpus)
            yield tuple(rows)
    taken = {(p.node, gpu) for p in plan.placement for gpu in p.gpus}
    for node in judge.composition.nodes:
        idle = [gpu for gpu in range(node.gpus) if (node.name, gpu) not in taken]
        for index, p in enumerate(plan.placement):
            if kinds[index] == node.gpu_type and len(p.gpus) <= len(idle) and p.node != node.name:
                rows = list(plan.placement)
                gpus = tuple(idle[: len(p.gpus)])
                rows[index] = PlacedStage(p.template, p.replica, p.stage, node.name, gpus)
                yield tuple(rows)
