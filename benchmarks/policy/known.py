"""The best plans known for the unseen compositions, those of the planner's benchmark among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.evaluation.references import Reference, References
from benchmarks.evaluation.run import EvaluationRequest, evaluate
from benchmarks.planner.references import BenchmarkReferences
from benchmarks.policy.cases import workload_of
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition

FILE = Path(__file__).with_name("references.json")
SECONDS = 30.0

Say = Callable[[str], None]
Clock = Callable[[], float]


@dataclass(slots=True)
class UnseenReferences(References):
    """References of this benchmark; those that the planner's benchmark keeps are not written again.

    Attributes:
        elsewhere: the rows of the planner's benchmark.
    """

    elsewhere: Mapping[Any, Reference] = field(default_factory=dict)

    @staticmethod
    def load(file: Path = FILE) -> UnseenReferences:
        """References of both files, the better of each, at the prices that they state."""
        elsewhere = BenchmarkReferences.load().rows
        rows = dict(elsewhere)
        for key, row in References.read(file).rows.items():
            known = rows.get(key)
            if known is None or row.throughput_samples_s >= known.throughput_samples_s:
                rows[key] = row
        return UnseenReferences(rows, file, elsewhere)

    def save(self) -> None:
        """Write the file."""
        own = {key: row for key, row in self.rows.items() if row != self.elsewhere.get(key)}
        References(own, self.file).save()


def reprice_file(file: Path) -> list[str]:
    """Take today's prices for all rows of a file.

    Returns:
        A line for each reference whose throughput is another now, in samples per second.
    """
    kept = References.read(file)
    lines = []
    for one in tuple(kept.rows.values()):
        workload = replace(usual_workload(find_model(one.model)), global_batch=one.batch)
        now = one.at_todays_cost(workload, find_profile(workload))
        kept.keep(now)
        if now != one:
            old, new = one.throughput_samples_s, now.throughput_samples_s
            lines.append(f"{one.model} {one.case}: {old:.3f} -> {new:.3f} samples/s")
    kept.save()
    return lines


def reprice(model: str, chosen: Sequence[ListedComposition], references: References) -> None:
    """Take today's prices of what is known for these compositions."""
    for one in chosen:
        workload = workload_of(model, one)
        known = references.of(model, one).at_todays_cost(workload, find_profile(workload))
        references.keep(known)


def _tell(say: Say, model: str, what: str) -> None:
    say(f"{model} {what}")


def extend(
    models: Sequence[str],
    chosen: Callable[[str], Sequence[ListedComposition]],
    seconds: float,
    references: References,
    say: Say,
) -> None:
    """Search what was not searched yet for so long, the file written after every search."""
    for model in models:
        workload = usual_workload(find_model(model))
        listed = tuple(chosen(model))
        question = PlanRequest(
            workload=workload, composition=listed[0].composition, budget_evaluations=None
        )
        asked = EvaluationRequest(question=question, listed=listed, methods=(), reference_s=seconds)
        for row in evaluate(asked, find_profile(workload), references, partial(_tell, say, model)):
            say(f"{model} {row.listed.name}: {row.reference_samples_s:.2f} by {row.found_by}")
