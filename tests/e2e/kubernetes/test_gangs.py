"""Two jobs that need four of six GPUs each, at once: one trains, the other holds nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.e2e.kubernetes.job import JOBS, WITHIN_S, Job, Json, job_body
from tests.e2e.kubernetes.operator_process import OperatorProcess, operator_on

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]

ROUNDS = int(os.environ.get("HEDDLE_GANGS", "1"))
STARTS_WITHIN_S = 30.0  # of the end of the other, until its pods are made


@pytest.fixture
def operator(assets: Assets) -> Iterator[OperatorProcess]:
    """An operator of three nodes with two GPUs each."""
    nodes = tuple(NodeSpec(f"n{number}", 2) for number in (1, 2, 3))
    with operator_on(nodes, assets) as found:
        yield found


def test_one_trains_the_other_holds_none_and_starts_when_the_first_has_ended(
    operator: OperatorProcess,
) -> None:
    for number in range(ROUNDS):
        a_race(operator.cluster, f"a{number}", f"b{number}")


def a_race(cluster: Cluster, *names: str) -> None:
    bodies = [job_body(name, minGPUs=4, minHolders=1) for name in names]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    applied_s = time.monotonic()
    cluster.kubectl("apply", "--filename=-", stdin=text)

    def one_trains(seen: Mapping[str, Json]) -> bool:
        return any((seen[name].get("status") or {}).get("activeGPUs", 0) >= 4 for name in names)

    seen = cluster.api.wait(JOBS, one_trains, WITHIN_S, "one of two jobs to train")
    print(f"one trains {time.monotonic() - applied_s:.1f} s after both were applied")
    jobs = [Job(cluster, name) for name in names]
    jobs.sort(key=lambda job: (seen[job.name].get("status") or {}).get("activeGPUs", 0))
    second, first = jobs
    second.wait_for_pods(lambda pods: not pods, "the other job to hold nothing")
    second.wait_for_event("InsufficientGPUs", "minGPUs is 4")
    ended_s = time.monotonic()
    cluster.kubectl("delete", "heddlejob", first.name, "--wait=false")
    second.wait_for_pods(lambda pods: len(pods) >= 2, "the other job's pods", STARTS_WITHIN_S)
    print(f"the other's pods are made {time.monotonic() - ended_s:.1f} s after the first ended")
    second.wait(lambda status: status.get("activeGPUs", 0) >= 4, "the other job to train")
    print(f"the other trains {time.monotonic() - ended_s:.1f} s after the first ended")
    second.delete()
