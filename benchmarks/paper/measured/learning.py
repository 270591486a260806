"""Search efficiency of policies while they learn: flat-RL, and Heddle's decomposition beside it.

All start untrained on the composition of the figure, with one learning rule; they differ in which
decisions they make and in the masks.  Every evaluation of the training counts.
Source: Heddle, section 6.4 ("Search efficiency").
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.baselines.estimated_plans import offer_placed
from benchmarks.baselines.flat_rl import MASKED, RAW, STRUCTURE, Decided, Learner, plan
from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from benchmarks.baselines.judge import judge
from benchmarks.paper.measured.efficiency import Points, cell
from planner.estimator.build_tables import pricing_of

FLAT, FLAT_MASKED, LEARNING = "flat-RL", "flat-RL, masked", "policy, learning"
KINDS: Mapping[str, Decided] = {LEARNING: STRUCTURE, FLAT: RAW, FLAT_MASKED: MASKED}
BUDGETS = (64, 256, 1000, 2000, 4000, 8000, 16000, 32000, 64000)
SHORT = 256  # plans, up to which a budget has a training of its own, as it may end within a group
SEEDS = (0, 1, 2)


def measure(budgets: Sequence[int] = BUDGETS, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Curves by kind and seed, and the share of plans that could not run."""
    return of_trainings({kind: [train(kind, seed, budgets) for seed in seeds] for kind in KINDS})


def train(kind: str, seed: int, budgets: Sequence[int] = BUDGETS) -> tuple[Points, float]:
    """The best so far of one kind, and the share of plans that could not run.

    Short budgets have a training each; the others are looked at on the way of one.
    """
    question, best, points = cell().question(seed), 0.0, []
    pricing = pricing_of(question.workload, question.composition, question.profile)
    assert pricing is not None
    learner = Learner(question, pricing, KINDS[kind])
    for budget in budgets:
        if budget <= SHORT:
            answer = plan(question, Budget(evaluations=budget), KINDS[kind])
        else:
            while learner.evaluations < budget:
                learner.improve()
            meter = Meter(Budget())
            offer_placed(question, pricing, learner.top_k, meter)
            answer = meter.answer()
        best = max(best, rate_of(answer, question))
        points.append([float(answer.plans_priced or learner.evaluations), best])
    return points, learner.invalid / max(1, learner.evaluations)


def budgets_of(curves: Sequence[Points]) -> list[int]:
    """The budgets that all trainings of a kind reached."""
    last = min(points[-1][0] for points in curves)
    return [budget for budget in BUDGETS if budget <= last]


def of_trainings(trained: Mapping[str, Sequence[tuple[Points, float]]]) -> dict[str, Any]:
    """What is stored of trainings by kind and seed."""
    curves = {kind: [points for points, _ in of_seeds] for kind, of_seeds in trained.items()}
    invalid = {
        kind: statistics.median(share for _, share in of_seeds)
        for kind, of_seeds in trained.items()
    }
    return {"curves": curves, "invalid": invalid}


def rate_of(answer: Answer, question: Question) -> float:
    """Samples per second of the first plan that fits; 0 without one."""
    found = judge(answer, question, most=1).counted
    return question.workload.global_batch / found.iteration_s if found else 0.0


def text(stored: Mapping[str, Any]) -> str:
    """What the further rows of the page are."""
    shares = ", ".join(f"{share:.0%} ({kind})" for kind, share in stored["invalid"].items())
    trainings = ", ".join(f"{len(c)} ({kind})" for kind, c in stored["curves"].items())
    return f"""`{LEARNING}`, `{FLAT}` and `{FLAT_MASKED}` start from nothing and learn here, by one
rule; every plan of their training counts. `policy` was trained before, on other compositions.
`{LEARNING}` decides depth, GPU types and TP degrees, and the fill derives the rest. `{FLAT}`
decides layers, replicas and micro-batch too, and has no masks. `{FLAT_MASKED}` has masks
for what cannot be packed. The paper says no more than "the same policy over the raw
six-dimensional action space".

There are {trainings} trainings. Of their plans {shares} could not run.
"""
