"""Measure the planner: `python -m benchmarks.planner [PART ...]`; writes docs/results.

Parts are `rates`, `quality`, `simpler`, `bound`, `process` and `report`, by default all;
`references` extends the references and is for the background: it takes hours and may be stopped at
any time.  `reprice` takes today's prices for the references and prints old and new.  `start-up`
says how long a user waits for an answer and for the estimator, and writes that only to `--output`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.clocks import CLOCKS
from benchmarks.planner import gap, process, quality, rates, start_up
from benchmarks.planner.compositions import USUAL_GPUS, Case, cases
from benchmarks.planner.references import MODELS, SECONDS, BenchmarkReferences
from benchmarks.planner.report import report

ROOT = Path(__file__).parents[2]
MEASURED = Path(__file__).with_name("measured.json")  # kept, as parts are measured alone
START_UP = "start-up"
APART = ("references", "reprice")  # change the references, so only when asked for
PARTS = ("rates", "quality", "simpler", "bound", "process", "report")
HUGE_BUDGETS_S = (0.5, 2.0)
PROCESS_GPUS = "h100=8x4,a100-40=16x4+8x1,a6000=8x4"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]], keys: tuple[str, ...]) -> Any:
    """Rows of now in place of older ones with the same keys."""
    rows = {tuple(row[key] for key in keys): row for row in (*old, *new)}
    return [rows[key] for key in sorted(rows)]


def measure(part: str, options: argparse.Namespace, measured: dict[str, Any]) -> None:
    """One part into `measured`."""
    references = BenchmarkReferences.load()
    chosen = options.cases
    if part == "rates":
        measured["rates"] = rates.measure(CLOCKS[options.clock])
    elif part == "process":
        measured["process"] = process.measure(options.models, PROCESS_GPUS)
    elif part == "quality":
        usual = [case for case in chosen if case.composition.gpus <= USUAL_GPUS]
        huge = [case for case in chosen if case.composition.gpus > USUAL_GPUS]
        rows = []
        for group, budgets_s in ((usual, options.budgets), (huge, HUGE_BUDGETS_S)):
            if group:
                rows += quality.samples(
                    options.models, group, budgets_s, references, say, CLOCKS[options.clock]
                )
        old = measured.get("quality", [])
        measured["quality"] = merged(old, rows, ("model", "case", "budget_s"))
        measured["clock"] = options.clock
    elif part == "bound":
        rows = gap.gaps(options.models, chosen, references, say, CLOCKS[options.clock])
        measured["bound"] = merged(measured.get("bound", []), rows, ("model", "case"))
    elif part == "simpler":
        usual = [case for case in chosen if case.composition.gpus <= USUAL_GPUS]
        rows = quality.simpler(options.models, usual, references, say)
        old = measured.get("simpler", [])
        measured["simpler"] = merged(old, rows, ("model", "case", "way"))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the planner's speed and quality.")
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART")
    parser.add_argument("--models", default=MODELS, type=lambda text: tuple(text.split(",")))
    parser.add_argument("--cases", default=cases(), type=_cases, help="for example c00,c05")
    parser.add_argument(
        "--budgets",
        default=quality.BUDGETS_S,
        type=lambda text: tuple(map(float, text.split(","))),
        help="seconds, for example 0.05,0.5",
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a reference's search")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="processor: beside other work, as if alone"
    )
    parser.add_argument("--again", action="store_true", help="repeat searches of references")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="what is known so far")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the report")
    parser.add_argument("--output", type=Path, help="of the report; docs/results/planner.md")
    options = parser.parse_args()
    known = (*PARTS, *APART, START_UP)
    wrong = set(options.parts) - {*known}
    if wrong:
        parser.error(f"no part {min(wrong)!r}; there are {', '.join(known)}")
    return options


def _cases(text: str) -> tuple[Case, ...]:
    names = text.split(",")
    return tuple(case for case in cases() if case.name in names)


def main() -> None:
    """Measure, print and write."""
    options = read_options()
    if options.parts == [START_UP]:
        text = start_up.table()
        if options.output is not None:
            options.output.write_text(f"{text}\n")
        print(text)
        return
    if set(APART) & set(options.parts):
        references = BenchmarkReferences.load()
        for line in references.reprice():
            print(line)
        references.save()
    if "references" in options.parts:
        for model in options.models:
            quality.warm(model, options.cases[0])
        references.extend(
            options.models,
            options.cases,
            options.seconds,
            again=options.again,
            clock=CLOCKS[options.clock],
            say=say,
        )
        references.save()
    measured: dict[str, Any] = {}
    if options.measured.exists():
        measured = json.loads(options.measured.read_text())
    for part in options.parts:
        measure(part, options, measured)
        options.measured.parent.mkdir(parents=True, exist_ok=True)
        options.measured.write_text(json.dumps(measured, indent=1) + "\n")
    if "report" in options.parts:
        text = report(measured, BenchmarkReferences.load(), cases(), options.note)
        output = options.output or ROOT / "docs" / "results" / "planner.md"
        output.write_text(text)
        print(text)


if __name__ == "__main__":
    main()
