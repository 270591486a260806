"""A Pod object at each moment of its life, as the decision loop sees it."""

from __future__ import annotations

import pytest

from heddle_operator.inventory.pods import view_pod
from worker.contract import RELEASE_BEFORE_S

NOW_S = 1_000_000.0
DUE = "1970-01-12T13:46:30Z"  # ten seconds before NOW_S


def a_pod(phase="Running", metadata=None, **status):
    notes = {
        "heddle.dev/node": "n1",
        "heddle.dev/ordinal": "1",
        "heddle.dev/created-at": "999990.250",
    }
    container = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    return {
        "metadata": {"name": "p", "annotations": notes, **(metadata or {})},
        "spec": {"containers": [container]},
        "status": {"phase": phase, "podIP": "10.0.0.9", **status},
    }


def view(pod, ready=True):
    return view_pod(pod, ready, NOW_S, 999_000.0)


def test_a_running_pod_has_an_address_and_a_precise_birth():
    seen = view(a_pod())
    assert (seen.node, seen.ordinal, seen.gpus) == ("n1", 1, 2)
    assert (seen.phase, seen.address, seen.created_s) == ("running", "10.0.0.9:8470", 990.25)


def test_an_address_of_version_6_is_bracketed():
    assert view(a_pod(podIP="fd00::9")).address == "[fd00::9]:8470"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_has_failed(phase):
    assert (view(a_pod(phase)).phase, view(a_pod(phase)).address) == ("ended", None)


def test_a_pod_whose_worker_ended_beside_a_sidecar_has_ended_and_lingers():
    killed = {"exitCode": 137, "reason": "OOMKilled"}
    rows = [
        {"name": "sidecar", "state": {"running": {}}},
        {"name": "worker", "state": {"terminated": killed}},
    ]
    seen = view(a_pod(containerStatuses=rows))
    assert (seen.phase, seen.lingers, seen.address) == ("ended", True, None)
    assert seen.problem == "worker ended with exit status 137 (OOMKilled)"
    rows[1] = {"name": "worker", "state": {"running": {}}}
    seen = view(a_pod(containerStatuses=rows))
    assert (seen.phase, seen.lingers) == ("running", False)


def waiting(reason, message=None):
    return {"containerStatuses": [{"name": "worker", "state": {"waiting": {
        "reason": reason, "message": message}}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "cause", "problem"),
    [
        (waiting("ImagePullBackOff", "Back-off: x"), "image", "ImagePullBackOff: Back-off: x"),
        (waiting("InvalidImageName"), "image", "InvalidImageName"),
        (waiting("CreateContainerConfigError"), "container", "CreateContainerConfigError"),
        (waiting("ImageInspectError"), "image", "ImageInspectError"),
        (waiting("SignatureValidationFailed"), "image", "SignatureValidationFailed"),
        (waiting("PostStartHookError"), "container", "PostStartHookError"),
        (
            {"initContainerStatuses": waiting("CrashLoopBackOff")["containerStatuses"]},
            *("container", "CrashLoopBackOff"),
        ),
        (waiting("ContainerCreating"), "container", ""),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/3 nodes are available"}]},
            "scheduling",
            "Unschedulable: 0/3 nodes are available",
        ),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_starting_is_said(status, cause, problem):
    seen = view(a_pod("Pending", **status))
    assert (seen.cause, seen.problem) == (cause, problem)


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu"])
def test_a_pod_that_the_kubelet_rejected_is_told_from_one_that_crashed(reason):
    said = "Pod was rejected: Requested: 2, Available: 0"
    seen = view(a_pod("Failed", reason=reason, message=said))
    assert (seen.cause, seen.problem) == ("rejected", f"{reason}: {said}")
    assert view(a_pod("Failed", reason="Evicted")).cause == "crash"


def test_a_pod_that_failed_says_its_last_words():
    ended = {"terminated": {"exitCode": 2, "message": "one\nError: no data\n"}}
    seen = view(a_pod("Failed", initContainerStatuses=[{"name": "data", "state": ended}]))
    assert seen.problem == "data ended with exit status 2: Error: no data"


def test_a_pod_that_is_to_be_disrupted_must_be_left():
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    assert view(a_pod(conditions=[condition])).notice == (
        "it is to be disrupted (PreemptionByScheduler)"
    )


def test_a_terminating_pod_runs_on_while_its_node_lives():
    pod = a_pod(metadata={"deletionTimestamp": DUE})
    assert (view(pod).phase, view(pod).deleting) == ("running", True)


def test_a_terminating_pod_trains_on_until_shortly_before_the_end_of_its_grace():
    found = view(a_pod(metadata={"deletionTimestamp": "1970-01-12T13:47:00Z"}))
    assert found.leaving_at_s == pytest.approx(1_000_020.0 - RELEASE_BEFORE_S - 999_000.0)
    assert view(a_pod()).leaving_at_s is None


def test_a_terminating_pod_of_a_dead_node_is_given_up_after_its_grace():
    assert view(a_pod(metadata={"deletionTimestamp": DUE}), ready=False).phase == "ended"
    later = "1970-01-12T13:47:00Z"
    assert view(a_pod(metadata={"deletionTimestamp": later}), ready=False).phase == "running"


def test_a_pod_with_the_network_of_its_host_is_called_on_its_own_port():
    pod = a_pod()
    worker = {"name": "worker", "ports": [{"name": "agent", "containerPort": 8501}]}
    pod["spec"] |= {"containers": [{**pod["spec"]["containers"][0], **worker}]}
    assert view(pod).address == "10.0.0.9:8470"
    pod["spec"]["hostNetwork"] = True
    assert view(pod).address == "10.0.0.9:8501"
