"""Measure the learned planner: `python -m benchmarks.policy [PART ...]`; writes docs/results.

Parts are `rollouts`, `anytime`, `noise`, `seeds` and `report`, by default all; `references` extends
the references and is for the background: it takes hours and may be stopped at any time.  `reprice`
takes today's prices for the references and prints old and new.  Seeds go on where they were.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clocks import CLOCKS
from benchmarks.evaluation.references import References
from benchmarks.policy import anytime, known, noise, rollouts, seeds
from benchmarks.policy.cases import DENSE, MODELS, unseen
from benchmarks.policy.report import report
from planner.training.composition_sets import ListedComposition

ROOT = Path(__file__).parents[2]
MEASURED = Path(__file__).with_name("measured.json")  # kept, as parts are measured alone
SEEDED = ROOT / "build" / "seeds"
PARTS = ("rollouts", "anytime", "noise", "seeds", "report")
APART = ("references", "reprice")  # change the references, so only when asked for

Chosen = dict[str, Sequence[ListedComposition]]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of now in place of older ones of the same model, composition and kind."""
    keys = ("model", "case", "method", "rollouts", "budget_s", "is_changed", "seed", "budget")
    rows = {tuple(row.get(key) for key in keys): row for row in (*old, *new)}
    return list(rows.values())


def measure(
    part: str,
    options: argparse.Namespace,
    chosen: Chosen,
    measured: dict[str, Any],
    references: References,
) -> None:
    """One part into `measured`."""
    old = measured.get(part, [])
    if part in ("rollouts", "anytime"):
        measured["clock"] = options.clock
    if part == "rollouts":
        rows = rollouts.measure(options.models, chosen, references, say, CLOCKS[options.clock])
        measured[part] = merged(old, rows)
    elif part == "anytime":
        clock = CLOCKS[options.clock]
        rows = anytime.measure(options.models, chosen, references, say, clock, options.budgets)
        measured[part] = merged(old, rows)
    elif part == "noise":
        rows = noise.measure(options.models, chosen, options.noise_s, say)
        measured[part] = merged(old, rows)
    elif part == "seeds":
        dense = [model for model in options.models if model in DENSE]
        rows = list(seeds.measure(dense, chosen, options.seeds, SEEDED, references, say))
        measured[part] = merged(old, rows)


def save(file: Path, measured: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(map(_listed, measured.items())) + "\n}\n")


def _listed(item: tuple[str, Any]) -> str:
    """An entry, of a list one row a line."""
    name, value = item
    if not isinstance(value, list):
        return f"{json.dumps(name)}: {json.dumps(value)}"
    rows = ",\n".join(map(json.dumps, value))
    return f"{json.dumps(name)}: [\n{rows}\n]"


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the learned planner.")
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART")
    parser.add_argument("--models", default=MODELS, type=words)
    parser.add_argument("--cases", default=(), type=words, help="for example c00,three-512")
    parser.add_argument("--seconds", type=float, default=known.SECONDS, help="of a reference")
    parser.add_argument(
        "--budgets",
        default=anytime.BUDGETS_S,
        type=lambda text: tuple(map(float, words(text))),
        help="seconds of `auto` and the engines",
    )
    parser.add_argument("--noise-s", type=float, default=noise.REFERENCE_S, help="of its searches")
    parser.add_argument(
        "--seeds", default=seeds.SEEDS, type=lambda text: tuple(map(int, words(text)))
    )
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="processor: beside other work, as if alone"
    )
    parser.add_argument("--measured", type=Path, default=MEASURED, help="what is known so far")
    parser.add_argument("--references", type=Path, default=known.FILE)
    parser.add_argument("--note", action="append", default=[], help="a sentence for the report")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "policy.md")
    options = parser.parse_args()
    for given, allowed in (
        (options.parts, (*PARTS, *APART)),
        (options.models, MODELS),
    ):
        wrong = set(given) - set(allowed)
        if wrong:
            parser.error(f"no {min(wrong)!r}; there are {', '.join(allowed)}")
    return options


def cases_of(options: argparse.Namespace, model: str) -> tuple[ListedComposition, ...]:
    """The compositions of a model that were asked for."""
    return tuple(one for one in unseen(model) if not options.cases or one.name in options.cases)


def main() -> None:
    """Measure, print and write."""
    options = read_options()
    if "reprice" in options.parts:
        for line in known.reprice_file(options.references):
            print(line)
    references = known.UnseenReferences.load(options.references)
    chosen: Chosen = {model: cases_of(options, model) for model in options.models}
    chosen = {model: rows for model, rows in chosen.items() if rows}
    options.models = tuple(chosen)
    if "references" in options.parts:
        known.extend(options.models, partial(cases_of, options), options.seconds, references, say)
    measured: dict[str, Any] = {}
    if options.measured.exists():
        measured = json.loads(options.measured.read_text())
    if set(options.parts) - set(APART):
        for model, rows in chosen.items():
            known.reprice(model, rows, references)
    for part in (one for one in options.parts if one not in APART):
        measure(part, options, chosen, measured, references)
        save(options.measured, measured)
    if "report" in options.parts:
        everything: Chosen = {model: unseen(model) for model in MODELS}
        text = report(measured, everything, references, options.note)
        options.output.write_text(text)
        print(text)


if __name__ == "__main__":
    main()
