"""A walk of the estimator on some GPUs, beside the evaluator that judges what it found."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import Pricing, pricing_of
from planner.estimator.top_k import load_top
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.candidate import Evaluator, UnplacedCandidate
from planner.search.searcher import Allowance, Searcher, limits_of
from planner.search.unplaced_candidates import unplaced_candidate_of

STEPS = 3000
ALONE = "a100-40=9x1,h100=7x1,a6000=6x1"  # every message crosses, every GPU has a NIC


class Walked(NamedTuple):
    """What a walk ran on, and what it found."""

    evaluator: Evaluator
    pricing: Pricing
    searcher: Searcher

    def candidate(self, row: int) -> UnplacedCandidate:
        """The plan in that row of its pool."""
        plan, work = new_plan(), new_workspace(self.pricing.tables)
        load_top(self.searcher.top_k, row, plan)
        return unplaced_candidate_of(self.pricing, plan, work)


class Walk(Protocol):
    """Walks for a workload, on the composition of a text."""

    def __call__(
        self, workload: Workload, text: str, steps: int = STEPS, templates: int = 8
    ) -> Walked:
        """Walk so many steps, over plans of so many templates at most."""


@pytest.fixture(scope="session")
def walked_on() -> Walk:
    """Walks for a workload, on the composition of a text."""

    def walk(workload: Workload, text: str, steps: int = STEPS, templates: int = 8) -> Walked:
        request = PlanRequest(workload=workload, composition=Composition.from_text(text))
        profile = find_profile(workload)
        pricing = pricing_of(workload, request.composition, profile)
        assert pricing is not None
        searcher = Searcher(pricing, limits_of(request), 0)
        searcher.start()
        searcher.walk(Allowance(steps), templates=templates)
        return Walked(
            Evaluator(workload=workload, composition=request.composition, profile=profile),
            pricing,
            searcher,
        )

    return walk


@pytest.fixture(scope="session", params=["llama3-8b", "gpt-neo-2.7b", "qwen3-30b-a3b"])
def walked_alone(request: pytest.FixtureRequest, walked_on: Walk) -> Walked:
    """A walk for each of some models, where every GPU has a node of its own."""
    return walked_on(
        Workload(model=find_model(request.param), global_batch=512, sequence_length=2048), ALONE
    )
