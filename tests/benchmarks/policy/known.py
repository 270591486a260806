"""The best plans known for the unseen compositions, those of the planner's benchmark among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from planner.composition_sets import ListedComposition
from planner.evaluation.references import References
from planner.evaluation.run import EvaluationRequest, evaluate
from planner.generator import find_profile
from planner.models import find_model
from planner.training.curriculum import usual_workload
from tests.benchmarks.planner.references import BenchmarkReferences
from tests.benchmarks.policy.cases import workload_of

FILE = Path(__file__).with_name("references.json")
SECONDS = 30.0

Say = Callable[[str], None]


def load(file: Path = FILE) -> References:
    """What both files hold, at the prices that they state."""
    references = References.read(file)
    for key, row in BenchmarkReferences.load().rows.items():
        known = references.rows.get(key)
        if known is None or row.throughput_samples_s > known.throughput_samples_s:
            references.rows[key] = row
    return references


def reprice(model: str, chosen: Sequence[ListedComposition], references: References) -> None:
    """Take today's prices of what is known for these compositions."""
    for one in chosen:
        workload = workload_of(model, one)
        known = references.of(model, one).at_todays_price(workload, find_profile(workload))
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
        asked = EvaluationRequest(workload, tuple(chosen(model)), (), reference_s=seconds)
        for row in evaluate(asked, find_profile(workload), references, partial(_tell, say, model)):
            say(f"{model} {row.listed.name}: {row.reference_samples_s:.2f} by {row.found_by}")
