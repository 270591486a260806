"""How near the division of GPUs comes to the best one: `python -m benchmarks.arbitration`.

The arbiter deals to jobs that start together, by the planner's curves and mixes; each job is then
planned on what it was dealt, within its limit.  What has no plan is dealt again, as the operator
does it: the job asks for a GPU more, until that changes nothing.  The judge lists every division.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping

from benchmarks.arbitration.cases import WORKLOADS, Case, Job, a_case
from benchmarks.arbitration.judge import Judge
from heddle_operator.rules.arbitration.arbitrate import arbitrate
from heddle_operator.rules.arbitration.demand import Demand
from heddle_operator.state.worth import Worth
from planner.api import answer
from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.errors import Infeasible
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.curves import mixed_throughputs, throughput_curves

_CURVES: dict[tuple[str, str], Worth] = {}


def worth_of(job: Job, case: Case) -> Worth:
    """Worth of GPUs to the job, by the operator's planner."""
    key = job.workload, case.nodes.digest
    if key not in _CURVES:
        workload = WORKLOADS[job.workload]
        request = PlanRequest(workload=workload, composition=case.nodes)
        profile = find_profile(workload)
        curves = throughput_curves(request, profile)
        _CURVES[key] = Worth.learnt(curves, *mixed_throughputs(request, profile, curves))
    return _CURVES[key]


def reached(case: Case) -> list[float]:
    """Samples per second of each job with what it is dealt."""
    least = {job.name: job.least for job in case.jobs}
    while True:
        dealt = arbitrate([_demand(case, job, least[job.name]) for job in case.jobs])
        counts = {job.name: sum(dealt[job.name].values()) for job in case.jobs}
        rates = [_planned(case, job, dealt[job.name]) for job in case.jobs]
        short = [
            job.name
            for job, rate in zip(case.jobs, rates, strict=True)
            if not rate and job.least <= counts[job.name] and least[job.name] <= job.most
        ]
        if all(least[name] > counts[name] for name in short):
            return rates
        for name in short:
            least[name] = counts[name] + 1


def _demand(case: Case, job: Job, least: int) -> Demand:
    nodes = case.nodes.nodes
    return Demand(
        job=job.name,
        priority=-job.rank,
        since=job.name,
        least=least,
        most=job.most,
        weight=1.0,
        nodes=tuple((node.name, node.gpus) for node in nodes),
        types={node.name: node.gpu_type for node in nodes},
        worth=worth_of(job, case) if len(case.jobs) > 1 else None,
    )


def _planned(case: Case, job: Job, allowance: Mapping[str, int]) -> float:
    """Samples per second of the job's plan within its limit; 0 without one."""
    mine = tuple(
        Node(name=node.name, gpu_type=node.gpu_type, gpus=min(node.gpus, allowance[node.name]))
        for node in case.nodes.nodes
        if allowance.get(node.name)
    )
    if sum(node.gpus for node in mine) < job.least:
        return 0.0
    workload = WORKLOADS[job.workload]
    limits = GpuLimits(job.most)
    request = PlanRequest(
        workload=workload, composition=Composition(mine), max_gpus=limits, threads=1
    )
    try:
        return answer(request, find_profile(workload)).throughput_samples_s
    except Infeasible:
        return 0.0


def main() -> None:
    """Print each case, then the median and the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--evaluations", type=int, default=12_000, help="of the judge's plans")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="leave out cases of fewer jobs")
    options = parser.parse_args()
    judge, shares = Judge(options.evaluations), []
    for seed in range(options.first, options.first + options.cases):
        case, started_s = a_case(seed), time.perf_counter()
        best = judge.best(case) if len(case.jobs) >= options.jobs else 0.0
        if not best:
            continue
        found = judge.value(case, reached(case))
        shares.append(found / best)
        jobs = ", ".join(f"{j.workload} {j.least}..{j.most} rank {j.rank}" for j in case.jobs)
        nodes = " ".join(f"{n.gpu_type}x{n.gpus}" for n in case.nodes.nodes)
        seconds = time.perf_counter() - started_s
        print(f"{seed:4} {shares[-1]:7.1%}  {seconds:5.0f} s  {nodes} | {jobs}", flush=True)
    print(f"{len(shares)} cases: median {statistics.median(shares):.1%}, worst {min(shares):.1%}")


if __name__ == "__main__":
    main()
