"""What each part of the training earns: the same time without it, on unseen compositions.

The time is that of the processor, so that other work on the machine does not count; how many groups
fit into it is found by a few updates before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from planner.composition_sets import ListedComposition
from planner.evaluation.references import References
from planner.evaluation.trial import try_out
from planner.generator import find_profile
from planner.models import find_model
from planner.request import PlanRequest
from planner.training.compositions import usual_types
from planner.training.curriculum import Curriculum, curriculum_of
from planner.training.run import Training
from planner.training.settings import TrainingSettings
from planner.training.trainer import Trainer
from tests.benchmarks.policy.cases import workload_of
from tests.benchmarks.policy.known import Say
from tests.benchmarks.policy.rollouts import ROLLOUTS

SECONDS = 180.0
COMPOSITIONS = TrainingSettings().compositions
SEEDS = (0, 1, 2)
PARTS = {
    "everything": "",
    "no PCGrad": "uses_clusters",
    "no SIL": "uses_imitation",
    "no forced depth": "uses_forced",
    "no FiLM": "uses_film",
    "no cloning": "uses_cloning",
}
TRIED_UPDATES = 8
KEPT_EVERY_S = 60.0  # a training that is killed begins again
TRIED_COMPOSITIONS = 32


@dataclass(frozen=True, slots=True)
class Ablated:
    """One training without one part.

    Attributes:
        model: its name.
        part: that is left out.
        seed: of the training.
        compositions: that it was trained on.
        groups: that fitted into the time.
        processor_s: that it took.
        percent: {rollouts: mean per cent of the reference over the compositions}.
    """

    model: str
    part: str
    seed: int
    compositions: int
    groups: int
    processor_s: float
    percent: dict[int, float]


def measure(
    models: Sequence[str],
    chosen: dict[str, Sequence[ListedComposition]],
    parts: Sequence[str],
    seeds: Sequence[int],
    compositions: int,
    seconds: float,
    folder: Path,
    references: References,
    done: Sequence[dict[str, Any]],
    say: Say,
) -> list[dict[str, Any]]:
    """Every training that is not among those done; each as soon as it is measured is said."""
    have = {(row["model"], row["part"], row["seed"]) for row in done}
    rows = list(done)
    for seed in seeds:
        for model in models:
            for part in parts:
                if (model, part, seed) in have:
                    continue
                where = folder / model / f"{part.replace(' ', '-')}-{seed}"
                row = _trained(
                    model, chosen[model], part, seed, compositions, seconds, where, references
                )
                rows.append(asdict(row))
                shares = ", ".join(f"best of {n}: {p:.2f} %" for n, p in row.percent.items())
                say(
                    f"{model} {part}, seed {seed}: {shares}, {row.groups} groups in "
                    f"{row.processor_s:.0f} s of processor time"
                )
    return rows


def _trained(
    model: str,
    chosen: Sequence[ListedComposition],
    part: str,
    seed: int,
    compositions: int,
    seconds: float,
    folder: Path,
    references: References,
) -> Ablated:
    settings = TrainingSettings(seed=seed, compositions=compositions)
    if PARTS[part]:
        settings = replace(settings, **{PARTS[part]: False})
    curriculum = curriculum_of(find_model(model), usual_types(model), settings)
    settings = replace(settings, groups=groups_for(curriculum, settings, seconds))
    begun_s = time.process_time()
    Training(curriculum, settings, folder).run(lambda _: None, "", KEPT_EVERY_S)
    took_s = time.process_time() - begun_s
    percent = {n: _percent(model, chosen, folder, n, references) for n in ROLLOUTS}
    return Ablated(model, part, seed, compositions, settings.groups, took_s, percent)


def groups_for(curriculum: Curriculum, settings: TrainingSettings, seconds: float) -> int:
    """Groups whose training takes about so many seconds of processor time, cloning included.

    What teaching and cloning take is known from a few compositions.
    """
    tried = replace(settings, groups=settings.together * TRIED_UPDATES)
    few = replace(curriculum, training=curriculum.training[:TRIED_COMPOSITIONS])
    begun_s = improving_s = time.process_time()
    for progress in Trainer(few, tried).run():
        if progress.phase != "improve":
            improving_s = time.process_time()
    update_s = (time.process_time() - improving_s) / TRIED_UPDATES
    before_s = (improving_s - begun_s) * len(curriculum.training) / len(few.training)
    return max(1, int((seconds - before_s) / update_s)) * settings.together


def _percent(
    model: str,
    chosen: Sequence[ListedComposition],
    folder: Path,
    rollouts: int,
    references: References,
) -> float:
    """Mean per cent of the reference, over compositions that somebody has a plan for; else 0."""
    found = []
    for one in chosen:
        known = references.of(model, one).throughput_samples_s
        if not known:
            continue
        workload = workload_of(model, one)
        asked = PlanRequest(
            workload,
            one.composition,
            method="policy",
            policy=folder,
            rollouts=rollouts,
            budget_evaluations=None,
        )
        trial = try_out(asked, find_profile(workload))
        found.append(100 * min(1.0, trial.throughput_samples_s / known))
    return sum(found) / len(found) if found else 0.0
