"""GPUs that pods hold are counted as the scheduler counts them."""

from __future__ import annotations

import pytest

from heddle_operator.inventory.requests import (
    GpuAllocation,
    allocation_of,
    gpus_held,
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
        "u", "n1", 2
    )


def test_a_pod_without_a_node_holds_nothing():
    assert allocation_of(a_pod("Pending", node=None)) is None


def test_the_job_s_own_gpus_are_told_from_those_of_others():
    allocations = [
        GpuAllocation("1", "a", 2, "job"),
        GpuAllocation("2", "a", 1, "other"),
        GpuAllocation("3", "b", 4),
    ]
    assert gpus_held(allocations, "job") == {"a": (2, 1), "b": (0, 4)}
