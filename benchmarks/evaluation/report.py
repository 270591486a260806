"""An evaluation as JSON and as text for people.

Invariant: nothing here decides or computes; it prints what rows and summaries say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.evaluation.run import EvaluatedComposition, EvaluationRequest
from benchmarks.evaluation.summary import Spread, summarize
from heddle.cli.tables import aligned
from planner.profiles.profile import Profile
from planner.training.likeness import node_counts, node_text
from planner.wording import counted

NONE = "-"


def to_json(
    rows: Sequence[EvaluatedComposition], asked: EvaluationRequest, profile: Profile
) -> dict[str, Any]:
    """Question, every row, and the summary, as plain data."""
    return {
        "model": asked.model,
        "profile_digest": profile.digest,
        "profile_origin": profile.origin,
        "budget_s": asked.question.budget_s,
        "budget_evaluations": asked.question.budget_evaluations,
        "reference_s": asked.reference_s,
        "seed": asked.question.seed,
        "threads": asked.question.threads,
        "training_compositions": len(asked.training),
        "compositions": [row.to_json() for row in rows],
        "summary": [asdict(one) for one in summarize(rows)],
    }


def evaluation_text(rows: Sequence[EvaluatedComposition], asked: EvaluationRequest) -> str:
    """Tables: what was planned for, what each method made of it, and the summary."""
    parts = [_compositions(rows), _trials(rows), _summary(rows)]
    notes = dict.fromkeys(
        f"{trial.method}: {trial.note}" for row in rows for trial in row.trials if trial.note
    )
    if notes:
        parts.append("\n".join(notes))
    budget = counted(asked.question.budget_evaluations or 0, "evaluated plan")
    if asked.question.budget_s:
        budget = f"{asked.question.budget_s:g} s"
    searched = f", at least of {asked.reference_s:g} s of auto" if asked.reference_s else ""
    parts.append(
        f"{asked.model}, {budget} a search; a reference is the best plan known"
        f"{searched}; throughput is modelled, times are measured"
    )
    return "\n\n".join(parts)


def _compositions(rows: Sequence[EvaluatedComposition]) -> str:
    head = ("composition", "GPUs", "batch", "origin", "reference", "samples/s", "distance")
    return aligned(
        (*head, "nearest training"),
        [
            (
                row.listed.name,
                f"{row.listed.composition.gpus}",
                f"{row.listed.batch}",
                row.listed.origin or NONE,
                row.found_by or NONE,
                f"{row.reference_samples_s:.1f}",
                NONE if row.nearest is None else f"{row.distance:.2f}",
                NONE if row.nearest is None else node_text(node_counts(row.nearest)),
            )
            for row in rows
        ],
    )


def _trials(rows: Sequence[EvaluatedComposition]) -> str:
    lines = []
    for row in rows:
        for index, trial in enumerate(row.trials):
            percent = row.percent(trial)
            has_plan = trial.plan is not None
            lines.append(
                (
                    row.listed.name if index == 0 else "",
                    trial.method,
                    f"{trial.throughput_samples_s:.1f}" if has_plan else NONE,
                    NONE if percent is None else f"{percent:.2f}",
                    f"{trial.seconds:.3f}" if has_plan else NONE,
                    f"{trial.evaluations}" if has_plan else NONE,
                )
            )
    head = ("composition", "method", "samples/s", "% of reference", "seconds", "evaluations")
    return aligned(head, lines)


def _summary(rows: Sequence[EvaluatedComposition]) -> str:
    lines = [
        (
            one.method,
            f"{one.plans} of {len(rows)}",
            *_figures(one.percent, ".2f"),
            _figures(one.throughput_samples_s, ".1f")[0],
            *_figures(one.seconds, ".3f")[::2],
            _figures(one.evaluations, ".0f")[0],
        )
        for one in summarize(rows)
    ]
    head = ("method", "plans", "% mean", "p10", "worst", "samples/s mean", "s mean", "longest")
    return aligned((*head, "evaluations mean"), lines)


def _figures(spread: Spread | None, form: str) -> tuple[str, ...]:
    if spread is None:
        return (NONE,) * 3
    return tuple(format(value, form) for value in (spread.mean, spread.p10, spread.worst))
