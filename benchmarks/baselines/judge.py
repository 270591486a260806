"""Heddle's evaluator on the plans of a baseline, in the order in which the baseline ranks them.

The first plan that fits in memory counts; the best of all that were looked at stands beside it.
Each is priced in the baseline's own placement and in Heddle's, with nothing else changed.
Invariant: a ranking is never changed; a plan that was not looked at is said to be so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.baselines.grid_cost import grid_cost
from benchmarks.baselines.interface import Answer, Question, RankedPlan
from benchmarks.baselines.layout import Layout
from planner.cost.evaluate import cost_of
from planner.cost.memory import slot_of, stage_memory
from planner.errors import UnprofiledConfiguration
from planner.plans.plan import Plan, faults
from planner.search.candidate import best_placed

LOOKED_AT = 60  # plans that are priced, at most
TRIED = 5000  # plans whose memory is checked until the first fits, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPlan:
    """One plan of a baseline by Heddle's evaluator."""

    rank: int  # in the baseline's own order, from 0
    own_s: float  # iteration by the baseline's own formula
    iteration_s: float  # by Heddle's, where the baseline puts it
    replaced_s: float | None  # by Heddle's, where Heddle puts it; None: it is no plan of Heddle
    gpus: int  # that it uses
    beyond: str  # what it says and no plan of Heddle can; empty: nothing
    plan: Plan | None  # itself; None where it is no plan of Heddle


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of an answer."""

    counted: JudgedPlan | None  # the first that fits
    best: JudgedPlan | None  # the fastest where the baseline puts it, of those looked at
    looked_at: int
    refused: Counter[str]  # of them, by reason


def judge(
    answer: Answer,
    question: Question,
    changed: Callable[[Plan], Plan | None] = lambda plan: plan,
    most: int = LOOKED_AT,
) -> Judgement:
    """Look at the plans of an answer until so many are priced.

    Args:
        answer: of the baseline.
        question: that it answers.
        changed: what is done to each plan before, such as another tiling; None: it cannot be.
        most: plans that are priced.
    """
    priced: list[JudgedPlan] = []
    refused: Counter[str] = Counter()
    looked = 0
    for rank, ranked in enumerate(answer.plans[:TRIED]):
        if looked >= most and priced:
            break
        looked += 1
        found = judged(rank, ranked, question, changed)
        if isinstance(found, str):
            refused[found] += 1
        else:
            priced.append(found)
    return Judgement(
        counted=priced[0] if priced else None,
        best=min(priced, key=lambda one: one.iteration_s, default=None),
        looked_at=looked,
        refused=refused,
    )


def judged(
    rank: int,
    ranked: RankedPlan,
    question: Question,
    changed: Callable[[Plan], Plan | None] = lambda plan: plan,
) -> JudgedPlan | str:
    """One plan; the reason if it cannot run."""
    layout = ranked.laid_out()
    beyond = layout.beyond_plans()
    try:
        if beyond:
            return _beyond(rank, ranked.own_s, layout, beyond, question)
        plan = changed(layout.as_plan())
        if plan is None or not fits(plan, question):
            return "memory"
        return as_plan(rank, ranked.own_s, plan, question)
    except UnprofiledConfiguration:
        return "not profiled"


def _beyond(
    rank: int, own_s: float, layout: Layout, beyond: str, question: Question
) -> JudgedPlan | str:
    groups = [group for grid in layout.grids for stage in grid.stages for group in stage.groups]
    if len(layout.grids) > 1 or any(len(group.nodes) > 1 for group in groups):
        return beyond
    try:
        found = grid_cost(layout.grids[0], question, layout.recompute)
    except ValueError:
        return "not profiled"
    if not found.fits:
        return "memory"
    return JudgedPlan(
        rank=rank,
        own_s=own_s,
        iteration_s=found.iteration_s,
        replaced_s=None,
        gpus=len(layout.gpus),
        beyond=beyond,
        plan=None,
    )


def as_plan(rank: int, own_s: float, plan: Plan, question: Question) -> JudgedPlan | str:
    """A plan that fits by Heddle's evaluator, in both placements; the reason if it has a fault."""
    asked = (question.workload, question.composition, question.profile)
    if faults(plan, question.workload, question.composition):
        return "cannot run"
    there = best_placed(plan.templates, question.workload, question.composition, question.profile)
    return JudgedPlan(
        rank=rank,
        own_s=own_s,
        iteration_s=cost_of(plan, *asked).iteration_s,
        replaced_s=None if there is None else cost_of(there, *asked).iteration_s,
        gpus=plan.gpus,
        beyond="",
        plan=plan,
    )


def fits(plan: Plan, question: Question) -> bool:
    """Whether every GPU of a plan holds its stage.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the plan.
    """
    workload, profile = question.workload, question.profile
    for template in plan.templates:
        for s, stage in enumerate(template.stages):
            slot = slot_of(template, s, max(template.micro_batches))
            peak = stage_memory(workload, profile, slot, stage.layers).peak_bytes
            if peak > profile.gpu_type(stage.gpu_type).usable_bytes:
                return False
    return True
