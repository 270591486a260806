"""The best plan ever found for each model on each composition, committed and beaten one by one.

`python -m benchmarks.evaluation --references` reads and writes files of the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from benchmarks.evaluation.references import References
from benchmarks.planner.compositions import Case, cases
from planner.errors import Infeasible
from planner.profiles.generator import find_profile
from planner.request import Method, PlanRequest
from planner.search.driver import search

FILE = Path(__file__).with_name("references.json")
MODELS = ("llama3-8b", "qwen3-32b", "qwen3-30b-a3b")
ENGINES: tuple[Method, ...] = tuple(m for m in get_args(Method) if m in ("search", "columns"))
SEEDS = (0, 1)
SECONDS = 30.0


class BenchmarkReferences(References):
    """The committed ones, of compositions that the generator still makes."""

    @staticmethod
    def load(file: Path = FILE) -> BenchmarkReferences:
        """References of the file."""
        made = {(case.name, case.text, case.batch) for case in cases()}
        rows = References.read(file).rows
        kept = {k: r for k, r in rows.items() if (r.case, r.composition, r.batch) in made}
        return BenchmarkReferences(kept, file)

    def reprice(self) -> list[str]:
        """Take today's prices; forget plans that cannot run any more, and what was searched.

        Returns:
            A line for each reference whose throughput is another now, in samples per second.
        """
        known = {case.name: case for case in cases()}
        lines = []
        for one in tuple(self.rows.values()):
            workload = known[one.case].workload(one.model)
            now = one.at_todays_cost(workload, find_profile(workload))
            self.keep(now)
            if now.throughput_samples_s != one.throughput_samples_s:
                old, new = one.throughput_samples_s, now.throughput_samples_s
                lines.append(f"{one.model} {one.case}: {old:.3f} -> {new:.3f} samples/s")
        return lines

    def extend(
        self,
        models: Sequence[str],
        chosen: Sequence[Case],
        seconds: float,
        *,
        again: bool,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        """Search what was not searched yet, the file written after every search.

        Args:
            models: names.
            chosen: compositions.
            seconds: of one search.
            again: search also what was searched before (the engines have changed).
            clock: whose seconds these are.
            say: told of every search.
        """
        for model, case, engine, seed in _searches(models, chosen):
            name = f"{engine}, seed {seed}, {seconds:g} s"
            known = self.of(model, case)
            if name in known.searched and not again:
                continue
            started_s = clock()
            workload = case.workload(model)
            request = PlanRequest(
                workload=workload,
                composition=case.composition,
                seed=seed,
                budget_s=seconds,
                budget_evaluations=None,
                method=engine,
            )
            try:
                found = search(request, find_profile(workload), clock)
            except Infeasible as error:
                say(f"{model} {case.name} {name}: {error}")
            else:
                self.offer(model, case, found.plan, found.throughput_samples_s, name)
                before = known.throughput_samples_s
                ratio = 100 * found.throughput_samples_s / before if before else 100.0
                took_s = clock() - started_s
                say(f"{model} {case.name} {name}: {ratio:.2f} % of before ({took_s:.1f} s)")
            known = self.of(model, case)
            tried = tuple(sorted({*known.searched, name}))
            self.keep(replace(known, searched=tried))
            self.save()


def _searches(
    models: Sequence[str], chosen: Sequence[Case]
) -> Iterator[tuple[str, Case, Method, int]]:
    for seed in SEEDS:
        for engine in ENGINES:
            for case in chosen:
                for model in models:
                    yield model, case, engine, seed
