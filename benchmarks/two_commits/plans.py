"""Plans of two commits: whether a change of the planner moved them.

    python -m benchmarks.two_commits.plans BEFORE AFTER [--evaluations N,N] [--seeds N,N]

Both commits plan the benchmark's 33 compositions for its four models, each by its own code and its
own prices, in evaluations instead of seconds.  Writes docs/results/plans_of_commits.md.  Plans that
were found are kept in build/plans_of_commits, and not searched again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.kept_rows import kept_rows
from benchmarks.pages import PAGES, ROOT, header
from benchmarks.tables import met, table
from benchmarks.two_commits.checkout import checked_out

KEPT = ROOT / "build" / "plans_of_commits"
EVALUATIONS = (3_000, 12_000)
SEEDS = (0, 1, 2, 3, 4)
MODELS = ("llama3-8b", "qwen3-32b", "mixtral-8x7b", "qwen3-30b-a3b")
MOST_MEAN_LOSS = 0.3  # points
MOST_MEDIAN_LOSS = 3.0
# Old commits have the compositions among their tests.
PROGRAM = """
import hashlib, json, sys, time
sys.path.insert(0, ".")
try:
    from benchmarks.planner.compositions import cases
except ImportError:
    from tests.benchmarks.planner.compositions import cases
from planner import plan
budget, seed, models, done = json.loads(sys.argv[1])
for model in models:
    for case in cases():
        if [model, case.name] in done:
            continue
        began = time.process_time()
        found = plan(
            case.workload(model), case.composition, seed=seed, budget_evaluations=budget, threads=1
        )
        row = {
            "rate": found.throughput_samples_s,
            "digest": hashlib.sha256(repr(found.plan).encode()).hexdigest()[:16],
            "model": model, "case": case.name, "seed": seed, "budget": budget,
            "seconds": round(time.process_time() - began, 2),
        }
        print(json.dumps(row), flush=True)
"""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A model's plans of both commits with one budget.

    Attributes:
        model: its name.
        budget: plans that each search may price.
        cells: compositions times seeds.
        equal: cells with the same plan.
        mean_points: change of the mean throughput, in per cent of that before.
        worst_points: change of the worst composition's median over seeds, likewise.
        worst_case: name of that composition.
        seconds: of the processor for a search, before and after, on average.
    """

    model: str
    budget: int
    cells: int
    equal: int
    mean_points: float
    worst_points: float
    worst_case: str
    seconds: tuple[float, float]


def main() -> None:
    """Plan what is not yet planned, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--evaluations", type=_numbers, default=EVALUATIONS)
    parser.add_argument("--seeds", type=_numbers, default=SEEDS)
    options = parser.parse_args()
    commits = (options.before, options.after)
    KEPT.mkdir(parents=True, exist_ok=True)
    with checked_out(options.before) as before, checked_out(options.after) as after:
        for budget in options.evaluations:
            for seed in options.seeds:
                for commit, tree in zip(commits, (before, after), strict=True):
                    plan_all(tree, KEPT / f"{commit}.jsonl", budget, seed)
    rows = [kept_rows(KEPT / f"{commit}.jsonl") for commit in commits]
    found = list(comparisons(*rows))
    (PAGES / "plans_of_commits.md").write_text(page(found, options), encoding="utf-8")


def plan_all(tree: Path, kept: Path, budget: int, seed: int) -> None:
    """Search every cell that `kept` lacks, by the code in `tree`."""
    done = [
        (row["model"], row["case"])
        for row in kept_rows(kept)
        if (row["budget"], row["seed"]) == (budget, seed)
    ]
    print(f"{kept.stem}: {budget} evaluations, seed {seed}", file=sys.stderr, flush=True)
    with kept.open("a") as rows:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps([budget, seed, MODELS, done])],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=rows,
            check=True,
        )


def comparisons(before: Sequence[Row], after: Sequence[Row]) -> Iterable[Comparison]:
    """A comparison for each model and budget, of the cells that both commits have."""
    old, new = ({_cell(row): row for row in rows} for rows in (before, after))
    both = [cell for cell in old if cell in new]
    for model, budget in dict.fromkeys((model, budget) for model, _, _, budget in both):
        cells = [cell for cell in both if (cell[0], cell[3]) == (model, budget)]
        ratios: dict[str, list[float]] = {}
        for cell in cells:
            ratios.setdefault(cell[1], []).append(new[cell]["rate"] / old[cell]["rate"])
        medians = {case: median(values) for case, values in ratios.items()}
        worst = min(medians, key=lambda case: medians[case])
        yield Comparison(
            model=model,
            budget=budget,
            cells=len(cells),
            equal=sum(old[cell]["digest"] == new[cell]["digest"] for cell in cells),
            mean_points=100 * (fmean(chain(*ratios.values())) - 1),
            worst_points=100 * (medians[worst] - 1),
            worst_case=worst,
            seconds=(
                fmean(old[cell]["seconds"] for cell in cells),
                fmean(new[cell]["seconds"] for cell in cells),
            ),
        )


def page(found: Iterable[Comparison], options: argparse.Namespace) -> str:
    """The page of results."""
    command = f"python -m benchmarks.two_commits.plans {options.before} {options.after}"
    rows = [
        (
            one.model,
            f"{one.budget:,}",
            f"{one.equal} of {one.cells}",
            f"{one.mean_points:+.2f} % ({met(one.mean_points >= -MOST_MEAN_LOSS)})",
            f"{one.worst_points:+.2f} %, {one.worst_case} "
            f"({met(one.worst_points >= -MOST_MEDIAN_LOSS)})",
            f"{one.seconds[0]:.1f} s, {one.seconds[1]:.1f} s",
        )
        for one in found
    ]
    head = ("model", "evaluations", "equal plans", "mean", "lowest median", "before, after")
    return "\n".join(
        (
            "# Plans of two commits",
            "",
            header(command, ["planner"], ", shared with other work."),
            "",
            f"Before is {options.before}, after is {options.after}. Each plans 33 compositions",
            "by its own code and prices. Changes are of modelled throughput, in per cent of that",
            "before: the mean of all cells, and the lowest median over seeds of a composition.",
            f"Goals: a mean of at least -{MOST_MEAN_LOSS} %, a lowest median of at least",
            f"-{MOST_MEDIAN_LOSS} %. Seconds are of the processor for a search, and have no goal.",
            "",
            table(head, rows),
            "",
        )
    )


def _cell(row: Row) -> tuple[str, str, int, int]:
    return row["model"], row["case"], row["seed"], row["budget"]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
