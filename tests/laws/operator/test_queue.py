"""Thirty small jobs on GPUs for eight: as many run as find room, the others follow in turn."""

from __future__ import annotations

from collections import Counter

import pytest

from heddle_operator.controller.arbiter import PriorityArbiter
from tests.fakes.operator import a_job
from tests.fakes.shared import SharedNodes

JOBS, AT_ONCE = 30, 8
NODES = dict.fromkeys("abcd", 4)
TICK_S = 0.5
STARTS_WITHIN_S = 10.0


def small_job(index):
    """A job of two GPUs."""
    job = a_job(minGPUs=2, maxGPUs=2)
    metadata = job.metadata.model_copy(update={"name": f"s{index}", "uid": f"s{index}"})
    spec = job.spec.model_copy(update={"steps": 60})
    return job.model_copy(update={"metadata": metadata, "spec": spec})


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.system)])
def test_small_jobs_fill_the_gpus_wait_their_turn_and_all_end(seed):
    jobs = [small_job(index) for index in range(JOBS)]
    around = SharedNodes(jobs, dict(NODES), seed, arbiter=PriorityArbiter())
    idle_s = 0.0
    while around.operators:
        around.advance(TICK_S)
        phases = Counter(operator.decision.phase for operator in around.operators)
        left = JOBS - phases["Complete"]
        idle_s = 0.0 if phases["Running"] == min(AT_ONCE, left) else idle_s + TICK_S
        assert idle_s <= STARTS_WITHIN_S, phases
        if left > AT_ONCE and phases["Running"] == AT_ONCE:
            assert phases["Pending"] == left - AT_ONCE
        if not left:
            break
    for cluster in around.clusters:
        *given_up, last = [record.outcome for record in cluster.records.all]
        assert last == "complete"
        assert set(given_up) <= {"aborted"}  # another job's pod was bound first
        assert len(given_up) <= 1
