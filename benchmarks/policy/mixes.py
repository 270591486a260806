"""Policies on held-back compositions of any GPU types, beside the plans of a longer search.

`python -m benchmarks.policy.mixes MODEL ...` measures the policies of these models, and writes
docs/results/policy_types.md with all rows known so far.
Invariants: no policy was trained on these compositions; a reference is searched for once for each
profile, so that another policy is measured by the same one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.clocks import CLOCKS
from benchmarks.evaluation.summary import Spread
from benchmarks.evaluation.trial import try_out
from benchmarks.pages import header
from benchmarks.policy.rollouts import ROLLOUTS
from benchmarks.tables import met, table
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.policy.card import PolicyCard
from planner.policy.weights import find_policy
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.training.curriculum import VALIDATION, Question, curriculum_of
from planner.training.likeness import node_counts, node_text
from planner.training.settings import TrainingSettings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "policy_types.md"
MEASURED = Path(__file__).with_name("mixes.json")
COMMAND = "python -m benchmarks.policy.mixes"
REFERENCE_S = 12.0  # processor time of the search that policies are compared with
LEAST_MEAN, LEAST_WORST = 96.0, 88.0  # goals, in per cent of it
# The ways that were tried, by what masks leave out; today's is the last.
WAYS = {"packing": "choices that cannot be packed", "memory": "also those that hold no model"}
TODAY = tuple(WAYS)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """One policy on one composition."""

    model: str  # its name
    way: str  # of `WAYS`
    composition: str  # as `heddle plan --composition` takes it
    batch: int  # samples a step
    profile: str  # digest of the profile that priced all plans
    weights: str  # digest of the policy's weights
    reference_samples_s: float  # of the longer search
    samples_s: dict[str, float]  # {rollouts: of the best of them}; 0 without a plan

    def percent(self, rollouts: int) -> float:
        """Throughput in per cent of the reference."""
        return 100 * self.samples_s[str(rollouts)] / self.reference_samples_s


def held_back(model: str, types: tuple[str, ...]) -> tuple[Question, ...]:
    """Compositions of the types, and their batches, that no policy of the model is trained on.

    They are half of those by which a training picks its weights.
    """
    shape, settings = find_model(model), replace(TrainingSettings(), compositions=1)
    return curriculum_of(shape, types, settings).validation[VALIDATION:]


def measure(
    model: str, folder: Path | None, known: Sequence[Mixed], say: Callable[[str], None]
) -> Iterator[Mixed]:
    """The policy of a folder, or Heddle's own, on each composition that holds the model."""
    policy, clock = find_policy(model, folder), CLOCKS["processor"]
    usual = usual_workload(find_model(model))
    profile = find_profile(usual)
    references = {
        (row.composition, row.batch): row.reference_samples_s
        for row in known
        if (row.model, row.profile) == (model, profile.digest)
    }
    for one in held_back(model, policy.card.types):
        asked = PlanRequest(
            workload=replace(usual, global_batch=one.batch),
            composition=one.composition,
            budget_evaluations=None,
            policy=folder,
        )
        text = node_text(node_counts(one.composition))
        reference = references.get((text, one.batch))
        if reference is None:
            searched = replace(asked, budget_s=REFERENCE_S)
            reference = try_out(searched, profile, clock).throughput_samples_s
        if not reference:
            say(f"{model} {text}: no plan")
            continue
        found = {
            str(n): try_out(
                replace(asked, method="policy", rollouts=n), profile, clock
            ).throughput_samples_s
            for n in ROLLOUTS
        }
        row = Mixed(
            model=model,
            way=TODAY,
            composition=text,
            batch=one.batch,
            profile=profile.digest,
            weights=policy.card.weights,
            reference_samples_s=reference,
            samples_s=found,
        )
        say(f"{model} {text}: " + ", ".join(f"{row.percent(n):.1f} %" for n in ROLLOUTS))
        yield row


def page(rows: Sequence[Mixed], cards: Sequence[PolicyCard], notes: Sequence[str]) -> str:
    """The page of all rows, of the models of these cards."""
    summary, details, ways = [], [], []
    for card in cards:
        by_way = {
            way: [row for row in rows if (row.model, row.way) == (card.model, way)] for way in WAYS
        }
        own = by_way[TODAY]
        for rollouts in ROLLOUTS:
            spreads = [
                Spread.of([row.percent(rollouts) for row in found]) for found in by_way.values()
            ]
            ways.append(
                (
                    *(card.model, rollouts),
                    *(f"{spread.mean:.2f} %" for spread in spreads),
                    *(f"{spread.worst:.2f} %" for spread in spreads),
                )
            )
            spread = Spread.of([row.percent(rollouts) for row in own])
            worst = min(own, key=lambda row: row.percent(rollouts))
            summary.append(
                (
                    *(card.model, rollouts, len(own)),
                    f"{spread.mean:.2f} % ({met(spread.mean >= LEAST_MEAN)})",
                    f"{spread.worst:.2f} % ({met(spread.worst >= LEAST_WORST)})",
                    worst.composition,
                )
            )
        details += [
            (
                *(row.model, row.composition, row.batch),
                f"{row.reference_samples_s:.1f}",
                *(f"{row.percent(n):.1f} %" for n in ROLLOUTS),
            )
            for row in own
        ]
    trained = [
        (
            *(card.model, len(card.types), f"{card.num_compositions:,}", f"{card.groups:,}"),
            f"{card.seconds['clock']:.0f} s, {card.seconds['processor']:.0f} s",
            card.commit.removesuffix("+")[:8],
        )
        for card in cards
    ]
    head = header(
        f"{COMMAND} {' '.join(card.model for card in cards)}",
        ("planner",),
        ",\nshared with other work. Throughput is modelled; searches count processor time.",
    )
    goals = f"mean, goal {LEAST_MEAN:g} %", f"worst, goal {LEAST_WORST:g} %"
    best_of = tuple(f"best of {n}" for n in ROLLOUTS)
    parts = (
        f"# Policies for all GPU types\n\n{head}",
        "A policy that knows all GPU types plans compositions of one to four of them that it was "
        "not trained on. Each\npercentage is of the plan that `--method auto` finds in "
        f"{REFERENCE_S:g} s. A training picks its weights by the mean on\nthese compositions and "
        "on as many of the usual types.",
        table(
            (
                "model",
                "best of",
                "compositions",
                goals[0],
                goals[1],
                "worst on",
            ),
            summary,
        ),
        "## Two ways\n\nBoth have the same weights and references. Masks of the first way leave "
        f"{WAYS['packing']} out, masks\nof the second {WAYS['memory']} "
        "([0042](../decisions/0042-masks-that-look-ahead-to-memory.md)).\n\n"
        + table(
            (
                *("model", "best of"),
                *(f"{what}, {way}" for what in ("mean", "worst") for way in WAYS),
            ),
            ways,
        ),
        "## Trainings\n\n"
        + table(
            ("model", "types", "compositions", "groups", "clock, processor time", "commit"), trained
        ),
        "## Compositions\n\n"
        + table(("model", "composition", "batch", "reference, samples/s", *best_of), details),
        "## Notes\n\n" + "\n".join(f"- {note}" for note in notes),
    )
    return "\n\n".join(parts if notes else parts[:-1]) + "\n"


def main() -> None:
    """Measure, keep the rows, and write the page."""
    parser = argparse.ArgumentParser(description="Measure policies for all GPU types.")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--policy", type=Path, help="folder of another policy; nothing is written")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="the rows known so far")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the page")
    options = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    known = []
    if options.measured.exists():
        known = [Mixed(**row) for row in json.loads(options.measured.read_text())]
    for model in options.models:
        found = list(measure(model, options.policy, known, say))
        known = [row for row in known if (row.model, row.way) != (model, TODAY)] + found
        if options.policy is None:
            rows = json.dumps([asdict(row) for row in known], indent=1)
            options.measured.write_text(rows + "\n")
    if options.policy is None:
        models = dict.fromkeys(row.model for row in known)
        cards = [find_policy(model).card for model in models]
        PAGE.write_text(page(known, cards, options.note))
    else:
        for n in ROLLOUTS:
            spread = Spread.of(
                [
                    row.percent(n)
                    for row in known
                    if (row.way == TODAY and row.model in options.models)
                ]
            )
            print(f"best of {n}: mean {spread.mean:.2f} %, worst {spread.worst:.2f} %")


if __name__ == "__main__":
    main()
