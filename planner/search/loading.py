"""Loads what numba has compiled, once a process, before any budget begins.

It asks a small question of its own, because numba loads a function when it is first called: the
question at hand may be so large that each call takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import MAX_DEPTH
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.policy.propose import propose
from planner.profiles.generator import find_profile
from planner.search.searcher import ENGINES, Allowance, Searcher

MODEL, GPUS = "tiny-llama", "demo-fast=1x2+1x3"
LOOKS = 5  # at the budget, of a turn that loads its functions


@cache
def load() -> None:
    """Have every function of the engines and of rollouts loaded; what is not compiled yet, is."""
    workload = usual_workload(find_model(MODEL))
    pricing = pricing_of(workload, Composition.from_text(GPUS), find_profile(workload))
    assert pricing is not None  # the profile has those types
    searcher = Searcher(pricing, SearchLimits(MAX_DEPTH, 2, 0, math.inf, math.inf), 0)
    searcher.start()
    for name in ENGINES:
        looks = iter(range(LOOKS))
        few = Allowance(fits=partial(_has_next, looks))
        next(searcher.improve(partial(_same, few), (name,), counts_plans=True), None)
    next(searcher.unplaced_candidates(), None)
    propose(None, pricing, searcher.limits, 1, 0)


def _same(allowance: Allowance) -> Allowance:
    return allowance


def _has_next(looks: Iterator[int], _: int) -> bool:
    return next(looks, None) is not None
