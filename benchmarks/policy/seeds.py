"""Effect of the seed of a whole training: policies of some seeds on the unseen compositions.

A policy that lies in the folder already is not trained again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.references import References
from benchmarks.policy.ablations import KEPT_EVERY_S, found_by
from benchmarks.policy.known import Say
from benchmarks.policy.rollouts import ROLLOUTS
from planner.model.catalogue import find_model
from planner.policy.weights import CARD, load_policy
from planner.training.composition_sets import ListedComposition
from planner.training.compositions import usual_types
from planner.training.curriculum import curriculum_of
from planner.training.run import Training
from planner.training.settings import TrainingSettings

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
