"""Effect of the seed of a whole training: policies of some seeds on the unseen compositions.

A policy that lies in the folder already is not trained again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.references import References
from benchmarks.evaluation.trial import try_out
from benchmarks.policy.cases import workload_of
from benchmarks.policy.known import Say
from benchmarks.policy.rollouts import ROLLOUTS
from planner.model.catalogue import find_model
from planner.policy.weights import CARD, load_policy
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition
from planner.training.compositions import usual_types
from planner.training.curriculum import curriculum_of
from planner.training.run import Training
from planner.training.settings import TrainingSettings

KEPT_EVERY_S = 60.0  # a training that is killed begins again
SEEDS = (0, 1, 2)
GROUPS = 4800  # as the policies that come with Heddle


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """One whole training.

    Attributes:
        model: its name.
        seed: of the training.
        groups: of rollouts.
        clock_s: that it took.
        processor_s: that it took.
        found: {str(rollouts): {name of the composition: samples a second of the best of them}},
            0 without a plan.
    """

    model: str
    seed: int
    groups: int
    clock_s: float
    processor_s: float
    found: dict[str, dict[str, float]]


def measure(
    models: Sequence[str],
    chosen: dict[str, Sequence[ListedComposition]],
    seeds: Sequence[int],
    folder: Path,
    references: References,
    say: Say,
) -> Iterator[dict[str, Any]]:
    """Every model with every seed."""
    for model in models:
        for seed in seeds:
            where = folder / f"{model}-{seed}"
            if not (where / CARD).exists():
                settings = TrainingSettings(seed=seed, groups=GROUPS)
                curriculum = curriculum_of(find_model(model), usual_types(model), settings)
                Training(curriculum, settings, where).run(lambda _: None, "", KEPT_EVERY_S)
            card = load_policy(where).card
            rows = chosen[model]
            found = {str(n): found_by(model, rows, where, n, references) for n in ROLLOUTS}
            clock_s, processor_s = card.seconds["clock"], card.seconds["processor"]
            say(f"{model}, seed {seed}: trained in {clock_s:.0f} s")
            yield asdict(
                Seeded(
                    model=model,
                    seed=seed,
                    groups=card.groups,
                    clock_s=clock_s,
                    processor_s=processor_s,
                    found=found,
                )
            )


def found_by(
    model: str,
    chosen: Sequence[ListedComposition],
    folder: Path,
    rollouts: int,
    references: References,
) -> dict[str, float]:
    """Samples a second of the best of so many rollouts on each composition; 0 without a plan."""
    found = {}
    for one in chosen:
        workload = workload_of(model, one)
        asked = PlanRequest(
            workload=workload,
            composition=one.composition,
            method="policy",
            policy=folder,
            rollouts=rollouts,
            budget_evaluations=None,
        )
        trial = try_out(asked, find_profile(workload))
        if trial.plan is not None:
            by = f"a policy of {folder.name}, {rollouts} rollouts"
            references.offer(model, one, trial.plan, trial.throughput_samples_s, by)
        found[one.name] = trial.throughput_samples_s
    return found
