"""Gain of each part of the training: the same time without it, on unseen compositions.

The time is that of the processor, so that other work on the machine does not count; how many groups
fit into it is found by a few updates before.  Trainings of one seed have the same teachers: they
teach once, and every training is charged what that took.  Teachers do not teach again: that alone
would take most of the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.evaluation.references import References
from benchmarks.evaluation.trial import try_out
from benchmarks.policy.cases import workload_of
from benchmarks.policy.known import Say
from benchmarks.policy.rollouts import ROLLOUTS
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Tables
from planner.model.catalogue import find_model
from planner.policy.partial_plans import Templates
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition
from planner.training.compositions import usual_types
from planner.training.curriculum import Curriculum, curriculum_of
from planner.training.run import Training
from planner.training.settings import TrainingSettings
from planner.training.teacher import Demonstration, teach
from planner.training.trainer import Trainer

SECONDS = 180.0
COMPOSITIONS = TrainingSettings().compositions
SEEDS = (0, 1, 2)
PARTS: dict[str, dict[str, Any]] = {
    "everything": {},
    "no PCGrad": {"uses_clusters": False},
    "no SIL": {"uses_imitation": False},
    "no forced depth": {"uses_forced": False},
    "no FiLM": {"uses_film": False},
    "no cloning": {"uses_cloning": False},
    "judged alone": {"best_of": 1},
    "blind to the batch": {"sees_batch": False},
}
TRIED_UPDATES = 8
KEPT_EVERY_S = 60.0  # a training that is killed begins again
TRIED_COMPOSITIONS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablated:
    """One training without one part.

    Attributes:
        model: its name.
        part: that is left out.
        seed: of the training.
        compositions: that it was trained on.
        groups: that fitted into the time.
        processor_s: that it took.
        found: {str(rollouts): {name of the composition: samples a second of the best of them}},
            0 without a plan.
    """

    model: str
    part: str
    seed: int
    compositions: int
    groups: int
    processor_s: float
    found: dict[str, dict[str, float]]


class Teachers:
    """Teachers of trainings on the same compositions: each teaches once, and counts each time."""

    def __init__(self) -> None:
        """Nothing was taught yet."""
        self._spared_s: list[float] = []  # several teach at a time
        self._given: dict[tuple[int, int], tuple[Demonstration, float]] = {}

    def teach(
        self, tables: Tables, limits: SearchLimits, steps: int, seed: int, start: Templates = ()
    ) -> Demonstration:
        """The lesson of that seed, which a trainer gives to one composition only."""
        if start:  # every training has starts of its own
            return teach(tables, limits, steps, seed, start)
        if (steps, seed) in self._given:
            lesson, took_s = self._given[steps, seed]
            self._spared_s.append(took_s)
            return lesson
        begun_s = time.thread_time()
        lesson = teach(tables, limits, steps, seed)
        self._given[steps, seed] = (lesson, time.thread_time() - begun_s)
        return lesson

    @property
    def spared_s(self) -> float:
        """Processor time that lessons took when they were first given."""
        return sum(self._spared_s)


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
) -> Iterator[dict[str, Any]]:
    """Every training that is not among those done, seed by seed."""
    have = {(row["model"], row["part"], row["seed"]) for row in done}
    for seed in seeds:
        for model in models:
            teachers = Teachers()
            for part in parts:
                if (model, part, seed) in have:
                    continue
                where = folder / model / f"{part.replace(' ', '-')}-{seed}"
                settings = TrainingSettings(seed=seed, compositions=compositions, revisions=0)
                row = _trained(
                    model, chosen[model], part, settings, seconds, where, references, teachers
                )
                say(
                    f"{model} {part}, seed {seed}: {row.groups} groups in {row.processor_s:.0f} s "
                    f"of processor time"
                )
                yield asdict(row)


def _trained(
    model: str,
    chosen: Sequence[ListedComposition],
    part: str,
    settings: TrainingSettings,
    seconds: float,
    folder: Path,
    references: References,
    teachers: Teachers,
) -> Ablated:
    settings = replace(settings, **PARTS[part])
    curriculum = curriculum_of(find_model(model), usual_types(model), settings)
    groups = groups_for(curriculum, settings, seconds)
    settings = replace(settings, groups=groups)
    spared_s, begun_s = teachers.spared_s, time.process_time()
    Training(curriculum, settings, folder, teachers.teach).run(lambda _: None, "", KEPT_EVERY_S)
    took_s = time.process_time() - begun_s + teachers.spared_s - spared_s
    found = {str(n): found_by(model, chosen, folder, n, references) for n in ROLLOUTS}
    return Ablated(
        model=model,
        part=part,
        seed=settings.seed,
        compositions=settings.compositions,
        groups=groups,
        processor_s=took_s,
        found=found,
    )


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
