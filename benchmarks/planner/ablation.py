"""What each part of the search brings: `python -m benchmarks.planner.ablation`.

Every search has the same number of evaluations and no policy, once whole and once without a part.
A measured row is kept, so a stopped run goes on.  Writes docs/results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from benchmarks.pages import header
from benchmarks.planner.compositions import SIZES, TYPES, cases
from benchmarks.planner.quality import WITHOUT_POLICY
from planner.cluster.composition import Composition, Node
from planner.errors import Infeasible
from planner.estimator.build_tables import Pricing
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from planner.search import driver
from tests.oracle.answers import committed
from tests.oracle.instances import instances

MODELS = ("llama3-8b", "qwen3-32b", "qwen3-30b-a3b", "gpt-neo-2.7b")
WHOLE = "whole"
LARGE = "1,000 nodes"
LARGE_MODELS = ("llama3-8b", "qwen3-30b-a3b")
PARTS = ("column generation", "exact search", "pricing by type")
EVALUATIONS = 3000
EQUAL = 1e-9
LEAST_POINTS = 0.3  # that a part must bring to the mean of one model to stay
FILE = Path(__file__).with_name("ablation.json")
PAGE = Path(__file__).parents[2] / "docs/results/search_ablation.md"


class _WithoutTypes(driver._Search):
    """A search that never prices node classes of one GPU type as one."""

    def _pricing(self, *, by_type: bool = False, **how: bool) -> Pricing | None:
        return None if by_type else super()._pricing(**how)


def throughput(request: PlanRequest, profile: Profile, without: str) -> float:
    """Samples per second of the plan found without a part; 0 where none is found."""
    method = "search" if without == "column generation" else "auto"
    asked = PlanRequest(
        workload=request.workload,
        composition=request.composition,
        min_holders=request.min_holders,
        max_gpus=request.max_gpus,
        seed=request.seed,
        method=method,
        policy=WITHOUT_POLICY if method == "auto" else None,
        budget_s=request.budget_s,
        budget_evaluations=EVALUATIONS,
    )
    nodes = 0 if without == "exact search" else driver.FEW_NODES
    kind = _WithoutTypes if without == "pricing by type" else driver._Search
    try:
        with patch.object(driver, "FEW_NODES", nodes), patch.object(driver, "_Search", kind):
            return driver.search(asked, profile).throughput_samples_s
    except Infeasible:
        return 0.0


def questions(models: Sequence[str], seeds: int) -> Iterator[tuple[str, str, int, Any]]:
    """(model or `oracle`, case, seed, what gives its request and profile)."""
    for instance in instances():
        yield "oracle", instance.name, 0, lambda i=instance: (i.request, i.profile)
    for model in LARGE_MODELS:
        yield LARGE, model, 0, lambda m=model: _large(m)
    for seed in range(seeds):
        for model in models:
            for case in cases():
                yield model, case.name, seed, lambda m=model, c=case, s=seed: _usual(m, c, s)


def _usual(model: str, case: Any, seed: int) -> tuple[PlanRequest, Profile]:
    workload = case.workload(model)
    request = PlanRequest(workload=workload, composition=case.composition, seed=seed)
    return request, find_profile(workload)


def _large(model: str) -> tuple[PlanRequest, Profile]:
    """1,000 nodes, nearly all of another GPU type, size or speed."""
    random = Random(1)
    nodes = tuple(
        Node(
            name=f"n{i}",
            gpu_type=random.choice(TYPES),
            gpus=random.choice(SIZES),
            speed_factor=1 - random.randrange(40) / 100,
        )
        for i in range(1000)
    )
    workload = usual_workload(find_model(model))
    return PlanRequest(workload=workload, composition=Composition(nodes)), find_profile(workload)


def main() -> None:
    """Measure what is not measured yet, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--models", nargs="*", default=MODELS)
    options = parser.parse_args()
    rows = json.loads(FILE.read_text()) if FILE.exists() else []
    known = {(row["model"], row["case"], row["seed"]) for row in rows}
    for model, case, seed, make in questions(options.models, options.seeds):
        if (model, case, seed) in known:
            continue
        request, profile = make()
        found = {part: throughput(request, profile, part) for part in (WHOLE, *PARTS)}
        rows.append({"model": model, "case": case, "seed": seed, "samples_s": found})
        print(f"{model} {case} seed {seed}: {found}", file=sys.stderr, flush=True)
        lines = ",\n ".join(json.dumps(row) for row in rows)
        FILE.write_text(f"[\n {lines}\n]\n")
    PAGE.write_text(page(rows))


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The page of results."""
    proven = committed()
    oracle = [row for row in rows if row["model"] == "oracle"]
    usual = [row for row in rows if row["model"] != "oracle"]
    models = [m for m in (*MODELS, LARGE) if any(row["model"] == m for row in usual)]
    seeds = 1 + max((row["seed"] for row in usual), default=0)
    lines = [
        "# Ablation of the search",
        "",
        header("python -m benchmarks.planner.ablation", ("planner",), "."),
        "",
        f"{len(cases())} compositions, {seeds} seed(s),",
        f"{EVALUATIONS} evaluations a search, no policy.",
        "A figure is the mean throughput in per cent of the whole search.",
        f"The column `oracle` counts the {len(oracle)} instances whose proven best plan is found.",
        "Throughput is modelled.",
        f"`{LARGE}`: {' and '.join(LARGE_MODELS)} on nodes of 40 speeds, 4 sizes and 4 GPU types.",
        "",
        f"| without | {' | '.join(models)} | oracle |",
        f"| --- |{' --- |' * (len(models) + 1)}",
    ]
    for part in (WHOLE, *PARTS):
        means = (f"{mean(usual, model, part):.2f} %" for model in models)
        found = sum(is_best(row, part, proven[row["case"]]) for row in oracle)
        name = "nothing" if part == WHOLE else part
        lines.append(f"| {name} | {' | '.join(means)} | {found} |")
    for part in PARTS:
        most = max((100 - mean(usual, model, part) for model in models), default=0.0)
        worse = sum(
            row["samples_s"][part] < row["samples_s"][WHOLE] * (1 - EQUAL) for row in oracle
        )
        stays = most >= LEAST_POINTS or worse
        verdict = "stays" if stays else "brings too little to stay"
        lines += ["", f"{part.capitalize()} brings up to {most:.2f} points to a model's mean,"]
        lines += [f"and {worse} oracle instances get worse without it: it {verdict}."]
    return "\n".join(lines) + "\n"


def mean(rows: Sequence[dict[str, Any]], model: str, part: str) -> float:
    """Mean per cent of the whole search over compositions that have a plan."""
    shares = [
        100 * row["samples_s"][part] / row["samples_s"][WHOLE]
        for row in rows
        if row["model"] == model and row["samples_s"][WHOLE]
    ]
    return statistics.fmean(shares) if shares else 0.0


def is_best(row: dict[str, Any], part: str, proven: dict[str, Any]) -> bool:
    """Whether the proven best plan of an instance was found."""
    best = proven.get("throughput_samples_s") or 0.0
    return abs(row["samples_s"][part] - best) <= EQUAL * max(best, 1.0)


if __name__ == "__main__":
    main()
