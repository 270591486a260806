"""Who plans a cell: the baselines, their re-tiled variants, and Heddle with three budgets.

A name is `sailor`, `sailor-moe` or `heddle-0.5`; `heddle-same` has the baselines' own budget, and
`heddle-no-ep` spreads no experts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.baselines.interface import Budget, Question
from benchmarks.baselines.judge import LOOKED_AT, JudgedPlan, Judgement, as_plan, judge
from benchmarks.baselines.registry import TITLES, find_baseline
from benchmarks.baselines.retile import retiled
from benchmarks.evaluation.references import compact, expanded
from benchmarks.evaluation.trial import try_out
from benchmarks.paper.cells import PEERS, Cell
from planner.cost.evaluate import cost_of
from planner.request import PlanRequest

HEDDLE_S = {"heddle-0.5": 0.5, "heddle-3": 3.0}  # budgets that do not depend on the baselines'
SAME, NO_EP = "heddle-same", "heddle-no-ep"
RETILED = "-moe"
FEW = 20  # plans of large cells, or re-tiled ones, that are priced
LARGE_GPUS = 256

NAMES: Mapping[str, str] = {
    **{name: TITLES[name] for name in PEERS},
    **{name + RETILED: f"{TITLES[name]}-MoE" for name in PEERS},
    "heddle-0.5": "Heddle, 0.5 s",
    "heddle-3": "Heddle, 3 s",
    SAME: "Heddle, the same budget",
    NO_EP: "Heddle without EP",
}


def planners_of(cell: Cell) -> tuple[str, ...]:
    """Those of a cell, in the order of its figure."""
    question = cell.question()
    has_experts = question.workload.model.experts is not None
    rows = [name for peer in PEERS for name in (peer, peer + RETILED)[: 1 + has_experts]]
    return (*rows, *([NO_EP] if has_experts else []), *HEDDLE_S, SAME)


def budget_of(planner: str, budget_s: float) -> float:
    """Seconds that a planner gets where the baselines get `budget_s`."""
    return HEDDLE_S.get(planner, budget_s)


def searches(planner: str) -> str:
    """The search behind a planner: a re-tiled plan is of the search of its baseline."""
    return planner.removesuffix(RETILED)


def plan_cell(cell: Cell, planner: str, budget_s: float) -> dict[str, dict[str, Any]]:
    """Rows of the store by planner: one, or two where a baseline's plans are re-tiled too."""
    question = cell.question()
    if planner.startswith("heddle"):
        return {planner: _heddle_row(question, planner, budget_s)}
    answer = find_baseline(planner)(question, Budget(seconds=budget_s))
    searched = {
        "budget_s": budget_s,
        "seconds": round(answer.seconds, 3),
        "plans_priced": answer.plans_priced,
        "finished": answer.finished,
    }
    most = LOOKED_AT if cell.gpus <= LARGE_GPUS else FEW
    rows = {planner: searched | _judged_row(judge(answer, question, most=most), question)}
    if question.workload.model.experts is not None:
        rows[planner + RETILED] = retiled_row(rows[planner], question)
        if rows[planner + RETILED]["counted"] is None:
            tiled = judge(answer, question, lambda plan: retiled(plan, question), most=1)
            rows[planner + RETILED] = searched | _judged_row(tiled, question)
    return rows


def retiled_row(row: dict[str, Any], question: Question) -> dict[str, Any]:
    """The row of a baseline whose counted plan is tiled by Heddle's rule; without one, no plan."""
    counted, found = row["counted"], None
    if counted is not None and counted["plan"] is not None:
        plan = retiled(expanded(counted["plan"]), question)
        if plan is not None:
            judged = as_plan(counted["rank"], counted["own_s"], plan, question)
            found = None if isinstance(judged, str) else _plan_row(judged, question)
    return row | {"counted": found, "best": found}


def _judged_row(found: Judgement, question: Question) -> dict[str, Any]:
    return {
        "looked_at": found.looked_at,
        "refused": dict(sorted(found.refused.items())),
        "counted": _plan_row(found.counted, question),
        "best": _plan_row(found.best, question),
    }


def _plan_row(one: JudgedPlan | None, question: Question) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "rank": one.rank,
        "own_s": one.own_s,
        "iteration_s": one.iteration_s,
        "replaced_s": one.replaced_s,
        "unused_gpus": question.composition.gpus - one.gpus,
        "beyond": one.beyond,
        "plan": None if one.plan is None else compact(one.plan),
    }


def _heddle_row(question: Question, planner: str, budget_s: float) -> dict[str, Any]:
    request = PlanRequest(
        workload=question.workload,
        composition=question.composition,
        budget_s=budget_s,
        seed=question.seed,
        allow_ep=planner != NO_EP,
        threads=1,
    )
    trial = try_out(request, question.profile, time.process_time)
    row: dict[str, Any] = {
        "budget_s": budget_s,
        "seconds": round(trial.seconds, 3),
        "plans_priced": trial.evaluations,
        "finished": False,
        "looked_at": 1,
        "refused": {} if trial.plan is not None else {trial.note: 1},
        "counted": None,
    }
    if trial.plan is not None:
        asked = (question.workload, question.composition, question.profile)
        seconds = cost_of(trial.plan, *asked).iteration_s
        judged = JudgedPlan(
            rank=0,
            own_s=seconds,
            iteration_s=seconds,
            replaced_s=seconds,
            gpus=trial.plan.gpus,
            beyond="",
            plan=trial.plan,
        )
        row["counted"] = _plan_row(judged, question)
    return row | {"best": row["counted"]}
