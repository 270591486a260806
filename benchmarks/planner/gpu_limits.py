"""Limits on GPUs against every choice within them: `python -m benchmarks.planner.gpu_limits`.

The judge lists all ways to choose GPUs within the limits of a case (node by node, no more could be
taken, alike ones once) and plans each without a limit.  All are searched with a few plans, the good
ones with more, the best with 12,000.  Best choices are kept in `gpu_limits.json`; those that lack
are judged (`--cases`, `--offset` and `--every` choose), then the limited search is compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.errors import Infeasible
from planner.model.catalogue import find_model
from planner.model.workload import Workload, usual_workload
from planner.profiles.generator import find_profile
from planner.request import DEFAULT_EVALUATIONS, PlanRequest
from planner.search.driver import search

JUDGED = Path(__file__).with_suffix(".json")
CASES = 200
MOST_GPUS = 16
# Plans of each search of the judge, and how far below the best the choices are that get them.
ROUNDS = ((600, 0.0), (DEFAULT_EVALUATIONS, 0.9), (12_000, 0.99))
LARGE_TYPES = ("a100-40", "a100-80", "h100", "a6000")
SIZES = (1, 2, 4, 4, 8)


@dataclass(frozen=True, slots=True)
class LimitedCase:
    """A composition, and the limits on its GPUs."""

    name: str
    request: PlanRequest

    @property
    def question(self) -> dict[str, Any]:
        """Question of the case, kept with its answer."""
        nodes = [(n.name, n.gpu_type, n.gpus) for n in self.request.composition.nodes]
        return {
            "model": self.request.workload.model.name,
            "batch": self.request.workload.global_batch,
            "nodes": json.loads(json.dumps(nodes)),
            "max_gpus": self.request.max_gpus.to_json(),
        }


def limited_cases() -> tuple[LimitedCase, ...]:
    """The cases, the same ones on every machine; two in five on LLaMA-3, some on three types."""
    return tuple(_case(index, Random(f"limits/{index}")) for index in range(CASES))


def _case(index: int, random: Random) -> LimitedCase:
    is_small = index % 5 < 3
    if is_small:
        kinds = ["demo-fast", "demo-slow"]
        workload = replace(
            usual_workload(find_model("tiny-llama")), global_batch=random.choice((20, 32, 48))
        )
    else:
        kinds = random.sample(LARGE_TYPES, 2 + (index % 3 == 0))
        batch = random.choice((64, 256, 1024))
        workload = Workload(
            model=find_model("llama3-8b"),
            global_batch=batch,
            sequence_length=2048,
            precision="fp16",
            memory="paper",
        )
    while True:
        count = random.randint(len(kinds), 5)
        types = [*kinds, *random.choices(kinds, k=count - len(kinds))]
        gpus = [random.choice(SIZES[:4] if is_small else SIZES) for _ in types]
        if 5 <= sum(gpus) <= MOST_GPUS:
            break
    names = random.sample("abcdefgh", count)
    nodes = [
        Node(name=name, gpu_type=kind, gpus=count)
        for name, kind, count in zip(names, types, gpus, strict=True)
    ]
    limits = _limits(sum(gpus), kinds, nodes, random)
    request = PlanRequest(workload=workload, composition=Composition(tuple(nodes)), max_gpus=limits)
    return LimitedCase(f"l{index:03d}", request)


def _limits(there: int, kinds: list[str], nodes: list[Node], random: Random) -> GpuLimits:
    """In all, of a type, or both; about half of what there is."""
    total, by_type = None, ()
    way = random.randrange(3)
    if way != 1:
        total = max(2, round(there * random.uniform(0.35, 0.75)))
    if way != 0:
        kind = random.choice(kinds)
        own = sum(node.gpus for node in nodes if node.gpu_type == kind)
        by_type = ((kind, random.randint(0, max(0, own - 1))),)
    return GpuLimits(total, by_type)


def choices_within(
    composition: Composition, limits: GpuLimits, *, by_node: bool = False
) -> Iterator[Composition]:
    """Every choice of GPUs to which none can be added, alike ones once (or each, `by_node`)."""
    nodes, known = composition.nodes, set()
    for counts in product(*(range(node.gpus + 1) for node in nodes)):
        used: dict[str, int] = {}
        for node, count in zip(nodes, counts, strict=True):
            used[node.gpu_type] = used.get(node.gpu_type, 0) + count
        if not limits.allows(used):
            continue
        if any(
            count < node.gpus and limits.allows(used | {node.gpu_type: used[node.gpu_type] + 1})
            for node, count in zip(nodes, counts, strict=True)
        ):
            continue
        rows = zip(nodes, counts, strict=True)
        kept = tuple(replace(node, gpus=count) for node, count in rows if count)
        alike = tuple(sorted((node.gpu_type, node.gpus) for node in kept))
        if by_node or alike not in known:
            known.add(alike)
            yield Composition(kept)


def throughput(request: PlanRequest) -> float:
    """Samples per second of the plan found; 0 where none fits."""
    try:
        return search(request, find_profile(request.workload)).throughput_samples_s
    except Infeasible:
        return 0.0


def judged(case: LimitedCase) -> dict[str, Any]:
    """The best of all choices within the limits."""
    began_s = time.process_time()
    every = list(choices_within(case.request.composition, case.request.max_gpus))
    reached = [0.0] * len(every)
    for plans, near in ROUNDS:
        least = near * max(reached)
        for index, choice in enumerate(every):
            if reached[index] >= least:
                asked = PlanRequest(
                    workload=case.request.workload, composition=choice, budget_evaluations=plans
                )
                reached[index] = max(reached[index], throughput(asked))
        if not max(reached):
            break
    best = max(range(len(every)), key=lambda index: reached[index])
    return {
        "case": case.name,
        "question": case.question,
        "choices": len(every),
        "best": [(n.name, n.gpus) for n in every[best].nodes],
        "samples_s": reached[best],
        "judged_s": round(time.process_time() - began_s, 1),
    }


def kept_answers() -> dict[str, dict[str, Any]]:
    """{case: what the judge found}."""
    if not JUDGED.exists():
        return {}
    return {row["case"]: row for row in json.loads(JUDGED.read_text())}


def keep(rows: dict[str, dict[str, Any]]) -> None:
    """Write the judge's answers, a line each."""
    lines = ",\n ".join(json.dumps(rows[name]) for name in sorted(rows))
    JUDGED.write_text(f"[\n {lines}\n]\n")


def ratio(case: LimitedCase, row: dict[str, Any]) -> float:
    """Share of the judge's best that the limited search reaches; 1 where neither has a plan."""
    assert row["question"] == case.question, "judge the case again"
    reached = throughput(case.request)
    if not row["samples_s"]:
        return 1.0 if not reached else float("inf")
    return reached / float(row["samples_s"])


def main() -> None:
    """Judge the cases that lack, search all that are judged, and print how near they come."""
    parser = argparse.ArgumentParser(description="Limits on GPUs against every choice within them.")
    parser.add_argument("--cases", type=int, default=CASES, help="the first so many")
    parser.add_argument("--every", type=int, default=1, help="one of so many, from --offset on")
    parser.add_argument("--offset", type=int, default=0)
    options = parser.parse_args()
    chosen = limited_cases()[options.offset : options.cases : options.every]
    found: list[float] = []
    for case in chosen:
        row = kept_answers().get(case.name)
        if row is None or row["question"] != case.question:
            row = judged(case)
            keep(kept_answers() | {case.name: row})
        found.append(ratio(case, row))
        spent = f"{row['choices']} choices, judged in {row['judged_s']} s"
        sys.stdout.write(f"{case.name} {found[-1]:.4f} of {row['samples_s']:.2f} ({spent})\n")
        sys.stdout.flush()
    found.sort()
    sys.stdout.write(
        f"{len(found)} cases: median {statistics.median(found):.4f}, worst {found[0]:.4f}, "
        f"{sum(one >= 0.99 for one in found)} at 0.99 or more\n"
    )


if __name__ == "__main__":
    main()
