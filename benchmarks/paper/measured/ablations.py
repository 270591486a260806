"""What each part of the training earns: the paper's training without it, with equal rollouts.

The base is the paper's training: nobody teaches, and a rollout is judged by its own value.  Each
policy is judged on compositions that it was not trained on, in the way that it was trained: one
trained without masks plans without them.  A training that was killed goes on where it was.
Source: Heddle, section 5.5 ("Training the planner").
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.paper.tables import table
from benchmarks.policy.cases import unseen
from planner.model.catalogue import find_model
from planner.policy.weights import CARD, Policy, load_policy
from planner.training.checkpoint import CHECKPOINT
from planner.training.composition_sets import ListedComposition
from planner.training.compositions import usual_types
from planner.training.curriculum import Curriculum, Question, curriculum_of
from planner.training.judge import ROLLOUTS, Judge
from planner.training.run import Training
from planner.training.settings import TrainingSettings

MODEL = "llama3-8b"
SEEDS = (0, 1, 2)
BASE = TrainingSettings(groups=1_200, uses_cloning=False, revisions=0, best_of=1)
WHOLE = "the paper's training"
PARTS: Mapping[str, Mapping[str, Any]] = {
    WHOLE: {},
    "no masks": {"uses_masks": False},
    "no FiLM": {"uses_film": False},
    "no forced depth": {"uses_forced": False},
    "no rollout of uniform types": {"uses_uniform_types": False},
    "entropy not divided by decisions": {"divides_entropy": False},
    "no self-imitation": {"uses_imitation": False},
    "no PCGrad": {"uses_clusters": False},
    "no groups": {"uses_groups": False},
    "blind to the batch": {"sees_batch": False},
    "judged by the best of 8": {"best_of": 8},
    "cloning first": {"uses_cloning": True},
}
BEYOND = ("judged by the best of 8", "cloning first")  # what the paper's training lacks
TRAININGS = Path(__file__).parents[3] / "build" / "ablations"
KEPT_EVERY_S = 60.0


def measure(
    parts: Sequence[str] = tuple(PARTS),
    seeds: Sequence[int] = SEEDS,
    base: TrainingSettings = BASE,
    judged_on: Sequence[ListedComposition] = unseen(MODEL),
    folder: Path = TRAININGS,
) -> dict[str, Any]:
    """By part, a row for each seed: per cent of the references, best of 16 and of 128 rollouts."""
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in parts}
    questions = tuple(Question(one.composition, one.batch or 0) for one in judged_on)
    judged_by = replace(_curriculum(base), validation=questions)
    reference = Judge(judged_by, base.teacher_steps).reference
    asked = [(seed, part) for part in parts for seed in seeds]
    for number, (seed, part) in enumerate(asked, 1):
        print(f"[{number}/{len(asked)}] {part}, seed {seed}", file=sys.stderr, flush=True)
        settings = settings_of(base, part, seed)
        curriculum = _curriculum(settings)
        policy = _trained(curriculum, settings, folder / f"{part.replace(' ', '-')}-{seed}")
        own = replace(curriculum, validation=questions)
        judge = Judge(own, base.teacher_steps, reference)
        reached = {str(n): float(judge.percent(policy.network, n).mean()) for n in ROLLOUTS}
        rows[part].append({"seed": seed, "processor_s": policy.card.seconds["processor"]} | reached)
    return {
        "model": MODEL,
        "rollouts": base.groups * base.rollouts,
        "steps": 2 * base.teacher_steps,
        "of": int((reference > 0).sum()),
        "parts": rows,
    }


def settings_of(base: TrainingSettings, part: str, seed: int) -> TrainingSettings:
    """The training without that part."""
    return replace(base, seed=seed, **PARTS[part])


def _curriculum(settings: TrainingSettings) -> Curriculum:
    return curriculum_of(find_model(MODEL), usual_types(MODEL), settings)


def _trained(curriculum: Curriculum, settings: TrainingSettings, folder: Path) -> Policy:
    """The policy of that training, which goes on where it was."""
    if not (folder / CARD).exists():
        training = Training(curriculum, settings, folder)
        if (folder / CHECKPOINT).exists():
            training.resume()
        training.run(lambda _: None, "", KEPT_EVERY_S)
    return load_policy(folder)


def text(stored: Mapping[str, Any]) -> str:
    """The page."""
    whole = stored["parts"][WHOLE]
    lines = [
        (part, *(_cell(rows, n) for n in ROLLOUTS), *(_earned(whole, rows, n) for n in ROLLOUTS))
        for part, rows in stored["parts"].items()
    ]
    head = ("trained with", *(f"best of {n}" for n in ROLLOUTS), *(f"earns, {n}" for n in ROLLOUTS))
    return f"""Each row is the paper's training of {stored["model"]} without one part, or with one
more: {", ".join(BEYOND)}. Nobody teaches but in *cloning first*. Each training makes
{stored["rollouts"]:,} rollouts. A cell is the mean over {stored["of"]} compositions that no
policy was trained on, in per cent of an annealing of {stored["steps"]:,} steps. It is the mean
of {len(whole)} seeds, with the lowest and the highest. Throughput is modelled, without placement.

{table(head, lines)}

*earns* is what the paper's training reaches above that row, in points, by the means. A part
earns nothing that can be told where its seeds overlap with those of the paper's training.
A policy that was trained without masks plans without them. *no groups* judges a rollout by
samples a second beside all rollouts of the update.
"""


def _values(rows: Sequence[Mapping[str, Any]], rollouts: int) -> list[float]:
    return [row[str(rollouts)] for row in rows]


def _cell(rows: Sequence[Mapping[str, Any]], rollouts: int) -> str:
    values = _values(rows, rollouts)
    return f"{statistics.fmean(values):.2f} % ({min(values):.2f} to {max(values):.2f})"


def _earned(
    whole: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], rollouts: int
) -> str:
    first, other = _values(whole, rollouts), _values(rows, rollouts)
    if first == other:
        return "-"
    earned = f"{statistics.fmean(first) - statistics.fmean(other):+.2f}"
    return earned if min(first) > max(other) or max(first) < min(other) else f"{earned}, overlap"
