"""Several jobs under one arbiter: 2 to 5 random ones, which come, end and get new nodes.

Some have a quota.  No GPU is in two plans; nobody keeps a pod above its floor that would bring a
job of higher priority to its own; no GPU stays idle that a job could use; no job moves more than
three times after a change.
"""

from __future__ import annotations

import math
import os
import random

import pytest

from heddle_operator.controller.arbiter import PriorityArbiter
from tests.fakes.operator import a_job
from tests.fakes.shared import SharedNodes

CASES = int(os.environ.get("HEDDLE_ARBITERS", "6"))
TICK_S = 0.5
SETTLES_WITHIN_S = 60.0
MOVES = 3


def random_jobs(chance):
    found = []
    for index in range(chance.randint(2, 5)):
        least = chance.choice((1, 1, 2, 3))
        most = chance.choice((None, least, least + 2))
        mode = chance.choice(("Auto", "Auto", "Recommend"))
        elastic = {"minGPUs": least, "mode": mode} | ({"maxGPUs": most} if most else {})
        job = a_job(**elastic)
        metadata = job.metadata.model_copy(update={"name": f"j{index}", "uid": f"j{index}"})
        spec = job.spec.model_copy(update={"steps": chance.choice((200, 100_000))})
        found.append(job.model_copy(update={"metadata": metadata, "spec": spec}))
    return found


def random_quotas(jobs, chance):
    """For some jobs, below `minGPUs`, just enough or with room."""
    found = {job.name: job.spec.elastic.min_gpus + chance.choice((-1, 0, 2)) for job in jobs}
    return {name: quota for name, quota in found.items() if chance.random() < 0.4}


def planned(cluster):
    """(node, GPU count from 0) of the plans that a job trains by or moves to."""
    records = [r for r in cluster.records.all if r.outcome in ("open", "live")][-1:]
    if any(r.outcome in ("complete", "failed") for r in cluster.records.all):
        return {}
    found = {}
    for record in records:
        for node in record.plan.nodes:
            row = [g for p in record.plan.placement if p.node == node for g in p.gpus]
            found[node] = 1 + max(row)
    return found


def adopted(cluster):
    return len(cluster.records.all) + len(cluster.pruned)


def pods_of(cluster):
    return [pod for pod in cluster.pods.values() if pod.phase != "ended"]


def check_no_gpu_is_in_two_plans(around):
    used = {}
    for cluster in around.clusters:
        for node, gpus in planned(cluster).items():
            used[node] = used.get(node, 0) + gpus
    for node, gpus in used.items():
        assert gpus <= around.gpus[node], f"{gpus} GPUs of {node} are in plans: {around.now} s"


def check_floors_come_first(around):
    active = [
        (around.priorities[operator.job.name], operator.job.spec.elastic.min_gpus, cluster)
        for operator, cluster in zip(around.operators, around.clusters, strict=True)
        if operator.decision.phase not in ("Complete", "Failed")
    ]
    held = {cluster.job: around.held(cluster.job) for _, _, cluster in active}
    free = sum(around.gpus.values()) - sum(held.values())
    for priority, least, cluster in active:
        if held[cluster.job] >= least or around.quotas.get(cluster.job, least) < least:
            continue
        spare = free
        for other_priority, other_least, other in active:
            if other_priority < priority:
                above = held[other.job] - other_least
                # Only whole pods can be given back, the last one of a node first.
                for pod in sorted(pods_of(other), key=lambda pod: (-pod.ordinal, pod.gpus)):
                    if pod.gpus <= above:
                        spare, above = spare + pod.gpus, above - pod.gpus
        assert held[cluster.job] + spare < least, (
            f"{cluster.job} waits for {least} GPUs, and {spare} could be its own"
        )


def check_nothing_is_idle(around):
    held = dict.fromkeys(around.gpus, 0)
    for row in around.allocations():
        held[row.node] += row.gpus
    idle = sum(count - held[node] for node, count in around.gpus.items())
    for operator, cluster in zip(around.operators, around.clusters, strict=True):
        elastic = operator.job.spec.elastic
        most = min(elastic.max_gpus or math.inf, around.quotas.get(cluster.job, math.inf))
        if operator.decision.phase != "Running" or elastic.mode != "Auto":
            continue
        assert not idle or sum(planned(cluster).values()) >= most, (
            f"{idle} GPUs are idle, and {cluster.job} could use them: {operator.decision.message}"
        )


@pytest.mark.parametrize("seed", range(CASES))
def test_random_jobs_share_the_nodes_by_priority(seed):
    chance = random.Random(seed)
    jobs = random_jobs(chance)
    gpus = {f"n{index}": chance.choice((1, 2, 4)) for index in range(chance.randint(2, 4))}
    priorities = {job.name: chance.choice((0, 0, 100, 1000)) for job in jobs}
    quotas = random_quotas(jobs, chance)
    around = SharedNodes([], gpus, seed, priorities, PriorityArbiter(), quotas=quotas)
    for change in (*jobs, {"x": 2}):
        if isinstance(change, dict):
            around.add_nodes(change)
        else:
            around.add_job(change)
        before = {cluster.job: adopted(cluster) for cluster in around.clusters}
        ended = None
        until_s = around.now + SETTLES_WITHIN_S
        while around.now < until_s:
            around.advance(TICK_S)
            check_no_gpu_is_in_two_plans(around)
            for cluster in around.clusters:
                cluster.check()
            over = {o.job.name for o in around.operators if o.decision.phase == "Complete"}
            if over != ended:  # the end of a job is a change, too
                ended = over
                before = {cluster.job: adopted(cluster) for cluster in around.clusters}
                until_s = around.now + SETTLES_WITHIN_S
            for cluster in around.clusters:
                moves = adopted(cluster) - before[cluster.job]
                assert moves <= MOVES, f"{cluster.job} moved {moves} times after one change"
        check_floors_come_first(around)
        check_nothing_is_idle(around)
