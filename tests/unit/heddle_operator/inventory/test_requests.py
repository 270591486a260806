"""GPUs that pods hold are counted as the scheduler counts them."""

from __future__ import annotations

import pytest

from heddle_operator.inventory.requests import (
    GpuAllocation,
    allocation_of,
    gpus_held,
    gpus_of_others,
    requested_gpus,
)


def container(gpus=None, **more):
    return {**({"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}), **more}


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"containers": [container()]}, 0),
        ({"containers": [container(2), container(1)]}, 3),
        ({"containers": [container(1)], "initContainers": [container(4)]}, 4),
        (
            {
                "containers": [container(1)],
                "initContainers": [container(2, restartPolicy="Always")],
            },
            3,
        ),
    ],
    ids=["none", "sum", "a large init container", "a sidecar"],
)
def test_the_effective_request_of_a_pod(spec, gpus):
    assert requested_gpus(spec) == gpus


def a_pod(phase="Running", node="n1", **metadata):
    return {
        "metadata": {"uid": "u", **metadata},
        "spec": {"nodeName": node, "containers": [container(2)]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_holds_nothing(phase):
    assert allocation_of(a_pod(phase)) is None


def test_a_pod_that_terminates_still_holds_its_gpus():
    assert allocation_of(a_pod(deletionTimestamp="2026-01-01T00:00:00Z")) == GpuAllocation(
        node="n1", gpus=2
    )


def test_a_pod_without_a_node_holds_nothing():
    assert allocation_of(a_pod("Pending", node=None)) is None


def test_the_job_s_own_gpus_are_told_from_those_of_others():
    allocations = [
        GpuAllocation(node="a", gpus=2, owner_uid="job"),
        GpuAllocation(node="a", gpus=1, owner_uid="other"),
        GpuAllocation(node="b", gpus=4),
    ]
    assert gpus_held(allocations, ("elsewhere", "job")) == {"a": (0, 3), "b": (0, 4)}
    assert gpus_held(allocations, ("", "job")) == {"a": (2, 1), "b": (0, 4)}


def tied(node="n1", key="metadata.name", **spec):
    field = {"key": key, "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"affinity": {"nodeAffinity": required}, **spec}


@pytest.mark.parametrize(
    ("spec", "node"),
    [
        (tied(), "n1"),
        ({"nodeSelector": {"kubernetes.io/hostname": "n2"}}, "n2"),
        ({}, None),
        (tied(schedulingGates=[{"name": "queue"}]), None),
        (tied(key="metadata.namespace"), None),
    ],
)
def test_a_pod_that_waits_claims_the_node_that_it_is_tied_to(spec, node):
    asks = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}
    pod = {"metadata": {"uid": "u"}, "spec": {**asks, **spec}, "status": {"phase": "Pending"}}
    found = allocation_of(pod)
    assert (found and (found.node, found.gpus, found.is_bound)) == (node and (node, 2, False))


def test_claims_of_others_count_only_where_the_job_has_no_pods_itself():
    rows = [
        GpuAllocation(node="a", gpus=1, owner_uid="mine", is_bound=False),
        GpuAllocation(node="a", gpus=2, owner_uid="other", is_bound=False),
        GpuAllocation(node="a", gpus=1, owner_uid="other"),
        GpuAllocation(node="b", gpus=2, owner_uid="other", is_bound=False),
    ]
    assert gpus_held(rows, ("", "mine")) == {"a": (1, 1), "b": (0, 2)}


def test_gpus_of_other_jobs_are_told_from_those_of_strangers():
    rows = [
        GpuAllocation(node="a", gpus=1, owner_uid="mine"),
        GpuAllocation(node="a", gpus=2, owner_uid="job"),
        GpuAllocation(node="a", gpus=1, owner_uid="stranger"),
        GpuAllocation(node="b", gpus=2, owner_uid="job", is_bound=False),
    ]
    assert gpus_of_others(rows, ("", "mine"), {"mine", "job"}) == {"a": 2, "b": 2}
