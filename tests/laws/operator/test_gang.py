"""All or nothing: of jobs that cannot all run, some train whole and the others hold no GPU.

Two jobs of minGPUs 4 on 6 GPUs, applied at once, in any order of the operator and the scheduler.
"""

from __future__ import annotations

import os

import pytest

from tests.fakes.operator import a_job
from tests.fakes.shared import SharedNodes

CASES = int(os.environ.get("HEDDLE_GANGS", "8"))
LAYOUTS = ({"a": 2, "b": 2, "c": 2}, dict.fromkeys("abcdef", 1), {"a": 3, "b": 3}, {"a": 4, "b": 2})
TICK_S = 0.5
SETTLES_WITHIN_S = 40.0
STARTS_WITHIN_S = 30.0  # of the end of the other


def jobs(count, steps, **elastic):
    found = []
    for index in range(count):
        job = a_job(minGPUs=4, joinDebounceSeconds=5, **elastic)
        metadata = job.metadata.model_copy(update={"name": f"j{index}", "uid": f"j{index}"})
        spec = job.spec.model_copy(update={"steps": steps})
        found.append(job.model_copy(update={"metadata": metadata, "spec": spec}))
    return found


def trains(cluster):
    return any(rank.phase == "training" for _, rank in cluster.holders())


@pytest.mark.parametrize("seed", range(CASES))
def test_one_trains_the_other_holds_none_and_starts_when_the_first_has_ended(seed):
    around = SharedNodes(jobs(2, steps=120), LAYOUTS[seed % len(LAYOUTS)], seed)
    while around.now < SETTLES_WITHIN_S:
        around.advance(TICK_S)
    first, second = sorted(around.clusters, key=trains, reverse=True)
    assert trains(first)
    assert not trains(second)
    assert around.held(first.job) >= 4
    assert around.held(second.job) == 0
    while around.held(first.job):
        around.advance(TICK_S)
        assert around.held(second.job) == 0 or not around.held(first.job)
    ended_s = around.now
    while not trains(second):
        around.advance(TICK_S)
        assert around.now - ended_s <= STARTS_WITHIN_S
