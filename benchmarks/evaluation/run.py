"""Try methods on compositions, one after the other, and measure them by the best plan known.

The reference of a composition is the best of a long search with another seed and of all that the
methods found, so that no plan is above 100 %.
Invariants: a composition's row depends on nothing but its own line and the questions; references
are kept as they are found, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.evaluation.references import References
from benchmarks.evaluation.trial import Trial, best_so_far, try_budgets, try_out
from planner.api import check_numbers
from planner.cluster.composition import Composition
from planner.profiles.profile import Profile
from planner.request import Method, PlanRequest
from planner.training.composition_sets import ListedComposition
from planner.training.likeness import nearest, node_counts, node_text

WARMING = 300  # plans of the searches that load what numba has compiled

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """Settings of an evaluation."""

    # as every method is asked it, but for method, composition and batch; its seed is that of all
    # searches, and that for a reference has the next one
    question: PlanRequest
    # the compositions; one that states no batch has the question's
    listed: tuple[ListedComposition, ...]
    methods: tuple[Method, ...]  # tried on each of them
    # what the policy was trained on, to tell how new a composition is to it
    training: tuple[Composition, ...] = ()
    # seconds of the search for a reference; 0: the best of the methods is it
    reference_s: float = 0.0
    curves: tuple[int, ...] = ()  # budgets, in plans, of the points of best-so-far curves

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.question.workload.model.name

    def of(self, one: ListedComposition, method: Method) -> PlanRequest:
        """The question to a method."""
        workload = self.question.workload
        if one.batch is not None:
            workload = replace(workload, global_batch=one.batch)
        return replace(self.question, workload=workload, composition=one.composition, method=method)

    @property
    def steps(self) -> int:
        """How often progress is told."""
        return 1 + len(self.listed) * (1 + len(self.methods))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedComposition:
    """Results of the methods on one composition."""

    listed: ListedComposition  # its line, with the batch that was used
    reference_samples_s: float  # the best throughput known; 0 if nobody has a plan
    found_by: str  # who found that
    # the training composition that is least unlike it; None if nobody said which
    nearest: Composition | None
    distance: float  # to that one (`planner.training.likeness`)
    trials: tuple[Trial, ...]  # one for each method, in their order

    def percent(self, trial: Trial) -> float | None:
        """Of the reference; None if nobody has a plan, or the method took no part."""
        if not self.reference_samples_s or not trial.took_part:
            return None
        return 100 * trial.throughput_samples_s / self.reference_samples_s

    def to_json(self) -> dict[str, Any]:
        """The row of `compositions[]`."""
        near = None
        if self.nearest is not None:
            text = node_text(node_counts(self.nearest))
            near = {"composition": text, "distance": self.distance}
        return {
            "name": self.listed.name,
            "composition": self.listed.text,
            "gpus": self.listed.composition.gpus,
            "batch": self.listed.batch,
            "origin": self.listed.origin,
            "reference_samples_s": self.reference_samples_s,
            "reference_by": self.found_by,
            "nearest_training": near,
            "methods": [
                trial.to_json() | {"percent": self.percent(trial)} for trial in self.trials
            ],
        }


def evaluate(
    asked: EvaluationRequest, profile: Profile, references: References, say: Say
) -> tuple[EvaluatedComposition, ...]:
    """Try every method on every composition.

    Better plans are kept in the references; `say` is told of each search before it starts.
    """
    for method in asked.methods:
        check_numbers(asked.of(asked.listed[0], method))
    say("load the estimator")
    for method in asked.methods:
        question = asked.of(asked.listed[0], method)
        try_out(replace(question, budget_s=None, budget_evaluations=WARMING), profile)
    batch = asked.question.workload.global_batch
    listed = [replace(one, batch=one.batch or batch) for one in asked.listed]
    return tuple(_evaluated(asked, one, profile, references, say) for one in listed)


def _evaluated(
    asked: EvaluationRequest,
    one: ListedComposition,
    profile: Profile,
    references: References,
    say: Say,
) -> EvaluatedComposition:
    model = asked.model
    say(f"{one.name}: reference")
    _search_reference(asked, one, profile, references)
    trials = []
    for method in asked.methods:
        say(f"{one.name}: {method}")
        question = asked.of(one, method)
        trial = try_out(question, profile)
        further = try_budgets(question, profile, asked.curves, trial)
        for found in (trial, *further):
            if found.plan is not None:
                by = f"{method}, seed {asked.question.seed}, {found.evaluations} plans"
                references.offer(model, one, found.plan, found.throughput_samples_s, by)
        trials.append(replace(trial, curve=best_so_far(further)))
    references.save()
    best = references.of(model, one)
    near, distance = nearest(one.composition, asked.training) if asked.training else (None, 0.0)
    return EvaluatedComposition(
        listed=one,
        reference_samples_s=best.throughput_samples_s,
        found_by=best.found_by,
        nearest=near,
        distance=distance,
        trials=tuple(trials),
    )


def _search_reference(
    asked: EvaluationRequest, one: ListedComposition, profile: Profile, references: References
) -> None:
    """The long search, unless the file says that it was done; what is kept has today's price."""
    question = replace(
        asked.of(one, "auto"),
        seed=asked.question.seed + 1,
        budget_s=asked.reference_s,
        budget_evaluations=None,
    )
    model = asked.model
    references.keep(references.of(model, one).at_todays_cost(question.workload, profile))
    name = f"auto, seed {question.seed}, {asked.reference_s:g} s"
    if not asked.reference_s or name in references.of(model, one).searched:
        return
    found = try_out(question, profile)
    if found.plan is not None:
        references.offer(model, one, found.plan, found.throughput_samples_s, name)
    known = references.of(model, one)
    references.keep(replace(known, searched=tuple(sorted({*known.searched, name}))))
    references.save()
