"""How good the best plan is after how many: the policy, one that clones nobody, random.

A point is the best of searches with budgets up to its own, each from its beginning, as in the
curves of `benchmarks.evaluation`.  The policy trained without cloning
is that of the ablations; without one the method is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.evaluation.references import References
from benchmarks.evaluation.trial import try_out
from benchmarks.policy.cases import workload_of
from benchmarks.policy.known import Say
from planner.profiles.generator import find_profile
from planner.request import Method, PlanRequest
from planner.training.composition_sets import ListedComposition

MODELS = ("llama3-8b",)
CASES = ("four-160", "two-64", "three-128", "ls2", "c08", "c17")  # the paper's figure first
BUDGETS = (50, 200, 1_000, 4_000, 16_000)  # plans
SEEDS = (0, 1, 2)
NOT_CLONED = "policy, not cloned"
METHODS: dict[str, Method] = {
    "policy": "policy",
    NOT_CLONED: "policy",
    "random": "random",
}
TRIED = 128  # rollouts, which tell how many plans one of them prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The best of some plans.

    Attributes:
        model: its name.
        case: name of the composition.
        method: one of `METHODS`.
        seed: of the sampling.
        budget: plans that were to be priced.
        evaluations: plans that were.
        throughput_samples_s: of the best so far; 0 without one.
    """

    model: str
    case: str
    method: str
    seed: int
    budget: int
    evaluations: int
    throughput_samples_s: float


def measure(
    models: Sequence[str],
    chosen: dict[str, Sequence[ListedComposition]],
    trainings: Path,
    references: References,
    say: Say,
) -> Iterator[dict[str, Any]]:
    """Every method with every budget and seed, on those of the compositions that are chosen."""
    for model in (model for model in models if model in MODELS):
        not_cloned = trainings / model / "no-cloning-0"
        for one in (one for one in chosen[model] if one.name in CASES):
            for method, asked in METHODS.items():
                folder = not_cloned if method == NOT_CLONED else None
                if folder is not None and not folder.is_dir():
                    say(f"{method}: there is no training in {folder.name}; measure ablations first")
                    continue
                for seed in SEEDS:
                    request = PlanRequest(
                        workload=workload_of(model, one),
                        composition=one.composition,
                        seed=seed,
                        method=asked,
                        policy=folder,
                        budget_evaluations=None,
                        rollouts=TRIED,
                    )
                    for row in _curve(model, one, method, request, references):
                        say(
                            f"{model} {one.name} {method} seed {seed}, {row.evaluations} plans: "
                            f"{row.throughput_samples_s:.2f} samples/s"
                        )
                        yield asdict(row)
        references.save()


def _curve(
    model: str,
    one: ListedComposition,
    method: str,
    request: PlanRequest,
    references: References,
) -> Iterator[Reached]:
    profile = find_profile(request.workload)
    # a rollout prices one plan at least, and no more where none of them is a plan
    plans_each = max(1.0, try_out(request, profile).evaluations / TRIED)
    best = 0.0
    for budget in BUDGETS:
        rollouts = max(1, round(budget / plans_each))
        found = try_out(replace(request, rollouts=rollouts), profile)
        if found.plan is not None:
            by = f"{method}, seed {request.seed}, {found.evaluations} plans"
            references.offer(model, one, found.plan, found.throughput_samples_s, by)
        best = max(best, found.throughput_samples_s)
        evaluations = found.evaluations or rollouts
        yield Reached(
            model=model,
            case=one.name,
            method=method,
            seed=request.seed,
            budget=budget,
            evaluations=evaluations,
            throughput_samples_s=best,
        )
