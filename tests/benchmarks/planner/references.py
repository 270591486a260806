"""The best plan ever found for each model on each composition, committed and beaten one by one.

Invariants: a reference is a plan that runs (no fault, fits in memory) and its throughput is the
evaluator's; it is replaced only by a faster one.  The file is written after every search, so that a
run can be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from planner.candidate import Judge
from planner.errors import Infeasible
from planner.generator import find_profile
from planner.plan import Plan
from planner.request import Method, PlanRequest
from planner.search import search
from tests.benchmarks.planner.compositions import Case, cases

FILE = Path(__file__).with_name("references.json")
MODELS = ("llama3-8b", "qwen3-32b", "qwen3-30b-a3b")
ENGINES: tuple[Method, ...] = tuple(m for m in get_args(Method) if m in ("search", "columns"))
SEEDS = (0, 1)
SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Reference:
    """The best plan known.

    Attributes:
        model: its name.
        case: name of the composition.
        composition: its text.
        batch: samples a step.
        throughput_samples_s: by the evaluator; 0 as long as no plan is known.
        found_by: which search found it.
        searched: what was tried.
        plan: None as long as none is known.
    """

    model: str
    case: str
    composition: str
    batch: int
    throughput_samples_s: float = 0.0
    found_by: str = ""
    searched: tuple[str, ...] = ()
    plan: Plan | None = None

    def to_json(self) -> dict[str, Any]:
        """A row of the file."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "plan"}
        return row | {"plan": None if self.plan is None else compact(self.plan)}

    @staticmethod
    def from_json(row: dict[str, Any]) -> Reference:
        """Read a row of the file."""
        plan = None if row["plan"] is None else expanded(row["plan"])
        return Reference(**row | {"searched": tuple(row["searched"]), "plan": plan})


def compact(plan: Plan) -> dict[str, Any]:
    """The JSON of a plan, but each placed stage as `node:gpu,gpu`, in the plan's order."""
    where = [f"{p.node}:{','.join(map(str, p.gpus))}" for p in plan.placement]
    return plan.to_json() | {"placement": where}


def expanded(row: dict[str, Any]) -> Plan:
    """The plan of a compact row; its digest is checked."""
    keys = [
        (t, r, s)
        for t, template in enumerate(row["templates"])
        for r in range(template["replicas"])
        for s in range(len(template["stages"]))
    ]
    placement = []
    for (t, r, s), text in zip(keys, row["placement"], strict=True):
        node, _, gpus = text.partition(":")
        devices = [int(gpu) for gpu in gpus.split(",")]
        placement.append({"template": t, "replica": r, "stage": s, "node": node, "gpus": devices})
    return Plan.from_json(row | {"placement": placement})


def repriced(reference: Reference, case: Case) -> float:
    """Samples per second by the evaluator of today; 0 if the plan cannot run any more."""
    if reference.plan is None:
        return 0.0
    workload = case.workload(reference.model)
    judge = Judge(workload, case.composition, find_profile(workload))
    found = judge.as_it_is(reference.plan)
    return 0.0 if found is None else found.price.throughput_samples_s


@dataclass(slots=True)
class References:
    """All that are known, by (model, case)."""

    rows: dict[tuple[str, str], Reference] = field(default_factory=dict)
    file: Path = FILE

    @staticmethod
    def load(file: Path = FILE) -> References:
        """What the file holds, of compositions that the generator still makes."""
        known = {case.name: case for case in cases()}
        rows: dict[tuple[str, str], Reference] = {}
        if file.exists():
            for row in json.loads(file.read_text()):
                one = Reference.from_json(row)
                case = known.get(one.case)
                if case is not None and (case.text, case.batch) == (one.composition, one.batch):
                    rows[one.model, one.case] = one
        return References(rows, file)

    def save(self) -> None:
        """Write the file, one row a line."""
        rows = [json.dumps(self.rows[key].to_json()) for key in sorted(self.rows)]
        new = self.file.with_suffix(".new")
        new.write_text("[\n" + ",\n".join(rows) + "\n]\n")
        new.replace(self.file)

    def of(self, model: str, case: Case) -> Reference:
        """The reference, or an empty one."""
        empty = Reference(model, case.name, case.text, case.batch)
        return self.rows.get((model, case.name), empty)

    def offer(self, model: str, case: Case, plan: Plan, samples_s: float, found_by: str) -> bool:
        """Keep a plan if it beats the reference; whether it does."""
        known = self.of(model, case)
        if samples_s <= known.throughput_samples_s * (1 + 1e-12):
            return False
        self.rows[model, case.name] = replace(
            known, throughput_samples_s=samples_s, found_by=found_by, plan=plan
        )
        return True

    def reprice(self) -> None:
        """Take today's prices; forget plans that cannot run any more, and what was searched."""
        known = {case.name: case for case in cases()}
        for key, one in self.rows.items():
            now = repriced(one, known[one.case])
            if abs(now - one.throughput_samples_s) > 1e-9 * one.throughput_samples_s:
                plan = one.plan if now else None
                self.rows[key] = replace(one, throughput_samples_s=now, plan=plan, searched=())

    def extend(
        self,
        models: Sequence[str],
        chosen: Sequence[Case],
        seconds: float,
        *,
        again: bool,
        say: Callable[[str], None],
    ) -> None:
        """Search what was not searched yet, the file written after every search.

        Args:
            models: names.
            chosen: compositions.
            seconds: of one search.
            again: search also what was searched before (the engines have changed).
            say: told of every search.
        """
        for model, case, engine, seed in _searches(models, chosen):
            name = f"{engine}, seed {seed}, {seconds:g} s"
            known = self.of(model, case)
            if name in known.searched and not again:
                continue
            started_s = time.perf_counter()
            workload = case.workload(model)
            request = PlanRequest(
                workload,
                case.composition,
                seed=seed,
                budget_s=seconds,
                budget_evaluations=None,
                method=engine,
            )
            try:
                found = search(request, find_profile(workload))
            except Infeasible as error:
                say(f"{model} {case.name} {name}: {error}")
            else:
                self.offer(model, case, found.plan, found.throughput_samples_s, name)
                before = known.throughput_samples_s
                ratio = 100 * found.throughput_samples_s / before if before else 100.0
                took_s = time.perf_counter() - started_s
                say(f"{model} {case.name} {name}: {ratio:.2f} % of before ({took_s:.1f} s)")
            known = self.of(model, case)
            tried = tuple(sorted({*known.searched, name}))
            self.rows[model, case.name] = replace(known, searched=tried)
            self.save()


def _searches(
    models: Sequence[str], chosen: Sequence[Case]
) -> Iterator[tuple[str, Case, Method, int]]:
    for seed in SEEDS:
        for engine in ENGINES:
            for case in chosen:
                for model in models:
                    yield model, case, engine, seed
