"""The best division of a few GPUs among jobs, by listing every one.

Each choice of GPUs is planned without a limit; a choice is known by how many GPUs of which type
lie together on a node, so equal ones are planned once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from benchmarks.arbitration.cases import WORKLOADS, Case, Job
from planner.api import answer
from planner.cluster.composition import Composition, Node
from planner.errors import Infeasible
from planner.profiles.generator import find_profile
from planner.request import PlanRequest

WEIGHT = 100.0  # of a priority beside the next lower one
Shape = tuple[tuple[str, int], ...]  # (type, GPUs) of each node that is used, sorted


class Judge:
    """Throughput by choice, planned once with so many evaluations."""

    def __init__(self, evaluations: int) -> None:
        self._evaluations = evaluations
        self._profiles = {name: find_profile(workload) for name, workload in WORKLOADS.items()}
        self._known: dict[tuple[str, Shape], float] = {}

    def throughput(self, workload: str, shape: Shape) -> float:
        """Samples per second with these GPUs; 0 without a plan."""
        key = (workload, tuple(sorted(row for row in shape if row[1])))
        if key not in self._known:
            self._known[key] = self._plan(*key)
        return self._known[key]

    def _plan(self, workload: str, shape: Shape) -> float:
        if not shape:
            return 0.0
        nodes = tuple(
            Node(name=f"n{i}", gpu_type=gpu_type, gpus=gpus)
            for i, (gpu_type, gpus) in enumerate(shape)
        )
        request = PlanRequest(
            workload=WORKLOADS[workload],
            composition=Composition(nodes),
            budget_evaluations=self._evaluations,
            threads=1,
        )
        try:
            return answer(request, self._profiles[workload]).throughput_samples_s
        except Infeasible:
            return 0.0

    def alone(self, case: Case, job: Job) -> float:
        """The job's best with all GPUs of the case within its limit."""
        free = tuple(node.gpus for node in case.nodes.nodes)
        return max(self.throughput(job.workload, _shape(case, c)) for c in _choices(free, job.most))

    def value(self, case: Case, reached: Sequence[float]) -> float:
        """The weighted sum of what the jobs reach, each of its best alone."""
        lowest = max(job.rank for job in case.jobs)
        return sum(
            WEIGHT ** (lowest - job.rank) * rate / best
            for job, rate in zip(case.jobs, reached, strict=True)
            if (best := self.alone(case, job))
        )

    def best(self, case: Case) -> float:
        """The value of the best division: most floors first, by priority, then the value."""
        free = tuple(node.gpus for node in case.nodes.nodes)
        return max(self._divisions(case, 0, free))[1]

    def _divisions(
        self, case: Case, index: int, free: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        order = sorted(case.jobs, key=lambda job: (job.rank, job.name))
        if index == len(order):
            yield (), 0.0
            return
        job, lowest = order[index], max(job.rank for job in case.jobs)
        alone = self.alone(case, job)
        for choice in _choices(free, job.most):
            gpus = sum(choice)
            if 0 < gpus < job.least:
                continue
            rate = self.throughput(job.workload, _shape(case, choice))
            if gpus and not rate:
                continue
            worth = WEIGHT ** (lowest - job.rank) * rate / alone if alone else 0.0
            left = tuple(have - take for have, take in zip(free, choice, strict=True))
            floors, rest = max(self._divisions(case, index + 1, left))
            yield (int(gpus > 0), *floors), worth + rest


def _shape(case: Case, choice: tuple[int, ...]) -> Shape:
    rows = zip(case.nodes.nodes, choice, strict=True)
    return tuple(sorted((node.gpu_type, gpus) for node, gpus in rows if gpus))


def _choices(free: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    ranges = (range(gpus + 1) for gpus in free)
    return (choice for choice in itertools.product(*ranges) if sum(choice) <= most)
