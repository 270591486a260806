"""A search that prices by Heddle's estimator: its beginning, and its best plans with places."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from benchmarks.baselines.layout import Layout
from benchmarks.baselines.quantities import require_profiled
from benchmarks.placing import fastest
from planner.estimator.build_tables import Pricing, pricing_of
from planner.estimator.top_k import TopK, load_top
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.plans.plan import Plan
from planner.search.candidate import Evaluator
from planner.search.unplaced_candidates import unplaced_candidate_of


def answer_by_estimates(
    question: Question,
    budget: Budget,
    load: Callable[[Pricing], object],
    search: Callable[[Pricing, Meter], TopK],
) -> Answer:
    """The best plans of a search, ranked by the estimator.

    Their placement is Heddle's, as the search decides none.

    Args:
        question: what is planned for.
        budget: of the search alone.
        load: has loaded what is compiled when it returns; the budget begins then.
        search: gives the best plans it has priced, once the meter says that its budget is spent.

    Raises:
        InvalidComposition: there is no GPU.
        UnprofiledConfiguration: a GPU type has no profile.
    """
    require_profiled(question)
    pricing = pricing_of(question.workload, question.composition, question.profile)
    if pricing is None:
        return Meter(budget).answer()
    load(pricing)
    meter = Meter(budget)
    offer_placed(question, pricing, search(pricing, meter), meter)
    return meter.answer()


def offer_placed(question: Question, pricing: Pricing, top_k: TopK, meter: Meter) -> None:
    """Give the meter all of them that can be placed, by the estimator's seconds."""
    evaluator = Evaluator(
        workload=question.workload, composition=question.composition, profile=question.profile
    )
    now, work = new_plan(), new_workspace(pricing.tables)
    for own_s, row in sorted((float(top_k.value[r]), r) for r in range(int(top_k.number[0]))):
        load_top(top_k, row, now)
        best = fastest(evaluator, unplaced_candidate_of(pricing, now, work))
        if best is not None:
            meter.offer(own_s, partial(_laid_out, best.plan))


def _laid_out(plan: Plan) -> Layout:
    return Layout.of_plan(plan)
