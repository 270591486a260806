"""A job of high priority takes GPUs from one of low priority, which moves and loses no step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest

from heddle_operator.resources.epoch_config_map import record_of_body
from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.installation import install_crd
from tests.e2e.kubernetes.job import Job, Json, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.operator_process import OperatorProcess, operator_of

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]

FLOOR = 2  # minGPUs of both jobs: one of two nodes each
PRIORITIES = {"low": 1, "high": 1000}


@pytest.fixture
def operator(assets: Assets) -> Iterator[OperatorProcess]:
    """An operator of two nodes with two GPUs each, and two PriorityClasses."""
    nodes = tuple(NodeSpec(f"n{number}", 2, "demo-slow") for number in (1, 2))
    with Cluster.start(nodes, assets=assets) as cluster:
        for name, value in PRIORITIES.items():
            cluster.kubectl("create", "priorityclass", name, f"--value={value}")
        install_crd(cluster)
        with operator_of(cluster) as found:
            yield found


def body(name: str) -> Json:
    """A job of the PriorityClass of its name."""
    found = job_body(name, minGPUs=FLOOR, minHolders=1, verify="Full")
    found["spec"]["worker"] = {"template": {"spec": {"priorityClassName": name}}}
    return found


def test_a_high_priority_gets_its_floor_by_a_planned_move_of_a_low_one(
    operator: OperatorProcess,
) -> None:
    cluster = operator.cluster
    low = Job.apply(cluster, body("low"))
    with Listener(low) as heard:
        low.wait_until_on("n1", "n2", gpus=4)
        heard.wait_for_steps(3)
        applied_s = time.monotonic()
        high = Job.apply(cluster, body("high"))
        ended = pods_that_end(low)
        print(f"the low job has given its pod {time.monotonic() - applied_s:.1f} s after the apply")
        low.wait_for_event("PlanSelected", "a job of higher priority needs the GPUs of pod")
        high.wait(lambda status: status.get("activeGPUs", 0) >= FLOOR, "the high job to train")
        print(f"the high job trains {time.monotonic() - applied_s:.1f} s after it was applied")
        assert low.get()["status"]["activeGPUs"] == FLOOR
        heard.wait_for_steps(3)
        heard.assert_nothing_lost()
        newest = max(low.epochs())
        assert len(heard.state_digests(newest)) == 1
        assert {record["reason"] for record in low.epochs().values()} <= {"start", "join", "drain"}
    assert not gpus_of(low) & gpus_of(high)
    moved = int(record_of(low, newest)["metadata"]["resourceVersion"])  # its last write: it is live
    assert all(int(pod["metadata"]["resourceVersion"]) > moved for pod in ended.values())
    assert {pod["spec"]["nodeName"] for pod in ended.values()} == {n for n, _ in gpus_of(high)}


def pods_that_end(job: Job) -> dict[str, Json]:
    """Pods of the job as they were when they were first seen to end, until one pod is left."""
    found: dict[str, Json] = {}

    def one_is_left(seen: Mapping[str, Json]) -> bool:
        for name, pod in seen.items():
            if "deletionTimestamp" in pod["metadata"]:
                found.setdefault(name, pod)
        return len(seen) == 1

    job.wait_for_pods(one_is_left, f"{job.name} to have one pod")
    return found


def gpus_of(job: Job) -> set[tuple[str, int]]:
    """(node, GPU) of the plan that trains."""
    plan = record_of_body(record_of(job, job.epoch), clock_offset_s=0.0).plan
    return {(placed.node, gpu) for placed in plan.placement for gpu in placed.gpus}


def record_of(job: Job, epoch: int) -> Json:
    """The ConfigMap of an epoch."""
    path = f"/api/v1/namespaces/default/configmaps/{job.name}-epoch-{epoch}"
    found: Json = job.cluster.api.get(path)
    return found
