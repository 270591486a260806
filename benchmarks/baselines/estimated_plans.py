"""The best plans of a search that prices by Heddle's estimator, as Heddle places them."""

from __future__ import annotations

from functools import partial

from benchmarks.baselines.interface import Meter, Question
from benchmarks.baselines.layout import Layout
from planner.estimator.build_tables import Pricing
from planner.estimator.top_k import TopK, load_top
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.plans.plan import Plan
from planner.search.candidate import Evaluator
from planner.search.unplaced_candidates import unplaced_candidate_of


def offer_placed(question: Question, pricing: Pricing, top_k: TopK, meter: Meter) -> None:
    """Give the meter all of them that can be placed, by the estimator's seconds."""
    evaluator = Evaluator(
        workload=question.workload, composition=question.composition, profile=question.profile
    )
    now, work = new_plan(), new_workspace(pricing.tables)
    for own_s, row in sorted((float(top_k.value[r]), r) for r in range(int(top_k.number[0]))):
        load_top(top_k, row, now)
        best = evaluator.place_and_price(unplaced_candidate_of(pricing, now, work))
        if best is not None:
            meter.offer(own_s, partial(_laid_out, best.plan))


def _laid_out(plan: Plan) -> Layout:
    return Layout.of_plan(plan)
