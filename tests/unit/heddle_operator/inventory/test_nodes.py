"""Which GPUs of a node a job may use, at each moment of the node's life."""

from __future__ import annotations

import math

import pytest

from heddle_operator.inventory.nodes import (
    NodeRequirements,
    facts_of,
    ready_since,
    unhealthy_pods,
    view_node,
)

REQUIRED = NodeRequirements({}, False, ("demo-fast",))
NOBODY = (0, 0)


def a_node(capacity=4, allocatable=None, ready="True", labels=None, **more):
    gpus = {"nvidia.com/gpu": str(capacity)} if capacity is not None else {}
    free = {"nvidia.com/gpu": str(capacity if allocatable is None else allocatable)}
    metadata = {
        "name": "n1",
        "labels": {"nvidia.com/gpu.product": "demo-fast"} if labels is None else labels,
        **more.get("metadata", {}),
    }
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:10Z"}
    conditions = [condition, *more.get("conditions", ())]
    status = {"capacity": gpus, "allocatable": free, "conditions": conditions}
    return {"metadata": metadata, "spec": more.get("spec", {}), "status": status}


def view(node, held=NOBODY, required=REQUIRED):
    return view_node(facts_of(node, required), held, 1.0, 100.0)


def test_free_gpus_are_what_others_do_not_hold():
    assert view(a_node()).seen.gpus == 4
    assert view(a_node(), (1, 2)).seen.gpus == 2
    assert view(a_node(), (0, 4)).seen.gpus == 0
    assert view(a_node(), (0, 4)).why == "has no free GPU (other pods hold 4 of 4)"


def test_a_node_without_gpus_is_no_node_of_a_job():
    assert view(a_node(capacity=None)) is None
    assert view(a_node(capacity=0)) is None


def test_a_kubelet_that_restarts_loses_no_gpus_of_the_job():
    found = view(a_node(capacity=0), (3, 0))
    assert (found.seen.gpus, found.seen.leaving_at_s, found.why) == (3, None, "")


def test_a_unhealthy_gpu_is_not_free():
    assert view(a_node(4, 3)).seen.gpus == 3


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (a_node(labels={}), "has no label that tells its GPU type; set heddle.dev/gpu-type"),
        (
            a_node(labels={"nvidia.com/gpu.product": "NVIDIA-H200"}),
            "is of GPU type h200; the job can use demo-fast",
        ),
    ],
    ids=["no label", "no profile"],
)
def test_a_type_that_cannot_be_planned_with_is_said(node, why):
    found = view(node)
    assert (found.seen, found.why) == (None, why)


def test_a_cordoned_node_takes_no_new_pods_and_keeps_its_own():
    node = a_node(spec={"unschedulable": True})
    assert view(node).seen.gpus == 0
    assert view(node, (2, 0)).seen.gpus == 2
    assert view(node, (2, 0)).seen.leaving_at_s is None
    assert view(node).why == "is cordoned"


def test_what_other_jobs_hold_on_a_node_is_lent():
    required = NodeRequirements({}, False, ("demo-fast",))
    full = view_node(facts_of(a_node(), required), (0, 4), 1.0, 100.0, lent=3)
    assert (full.seen.gpus, full.seen.lent, full.seen.for_jobs) == (0, 3, 3)
    cordoned = a_node(spec={"unschedulable": True})
    assert view_node(facts_of(cordoned, required), (0, 4), 1.0, 100.0, lent=3).seen.for_jobs == 0


def test_a_cordon_is_a_notice_to_jobs_that_say_so():
    required = NodeRequirements({}, True, ("demo-fast",))
    assert (
        view(a_node(spec={"unschedulable": True}), (2, 0), required).seen.leaving_at_s == math.inf
    )


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_left(status):
    found = view(a_node(ready=status), (4, 0))
    assert found.seen.leaving_at_s == math.inf
    assert not found.seen.is_ready


def test_the_link_domain_is_the_nearest_fabric_that_a_label_names():
    labels = {"heddle.dev/gpu-type": "demo-fast", "topology.kubernetes.io/zone": "z"}
    assert view(a_node(labels=labels)).seen.link_domain == "z"
    assert view(a_node(labels={**labels, "nvidia.com/gpu.clique": "c"})).seen.link_domain == "c"
    assert view(a_node()).seen.link_domain == "default"


def test_ready_since_is_the_time_of_the_condition():
    assert ready_since(a_node()) == 1767225610.0


def a_pod(name, *health):
    resources = [{"resourceID": f"gpu-{i}", "health": h} for i, h in enumerate(health)]
    statuses = [{"allocatedResourcesStatus": [{"name": "x", "resources": resources}]}]
    return {"metadata": {"name": name}, "status": {"containerStatuses": statuses}}


def test_the_pod_with_the_unhealthy_gpu_is_found_by_its_status():
    pods = [a_pod("p0", "Healthy"), a_pod("p1", "Healthy", "Unhealthy")]
    assert unhealthy_pods(a_node(4, 3), (4, 0), pods) == {"p1": "its GPU gpu-1 is unhealthy"}


def test_without_a_word_on_which_gpu_is_unhealthy_every_pod_of_the_node_is_suspect():
    pods = [a_pod("p0"), a_pod("p1")]
    why = "its node has 1 unhealthy GPU of 4"
    assert unhealthy_pods(a_node(4, 3), (4, 0), pods) == {"p0": why, "p1": why}


@pytest.mark.parametrize(
    ("node", "held"),
    [(a_node(4, 3), (3, 0)), (a_node(0, 0), (4, 0)), (a_node(4, 4), (4, 0))],
    ids=["a GPU that nobody holds", "kubelet restarts", "all well"],
)
def test_no_pod_is_suspect_without_need(node, held):
    assert unhealthy_pods(node, held, [a_pod("p0")]) == {}
