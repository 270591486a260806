"""From a Pod object to the pod as the decision loop sees it.

Invariant: a pod that ended is "ended" whatever its exit code.  So is one whose worker ended beside
a sidecar, and one whose node is dead and whose time is up: nobody is left who could say so.
Source: Kubernetes' pod life cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from heddle_operator.apis.labels import (
    CREATED_ANNOTATION,
    NODE_ANNOTATION,
    ORDINAL_ANNOTATION,
    WORKER,
)
from heddle_operator.apis.times import wall_s
from heddle_operator.inventory.host_ports import agent_port
from heddle_operator.inventory.requests import requested_gpus
from heddle_operator.state.reasons import StartCause
from heddle_operator.state.snapshot import ObservedPod, PodPhase
from worker.contract import RELEASE_BEFORE_S

# Why a container waits that will not start by waiting longer.
# Source: pkg/kubelet/images/types.go and pkg/kubelet/kuberuntime of Kubernetes.
_STUCK: Mapping[str, StartCause] = {
    "ErrImagePull": "image",
    "ImagePullBackOff": "image",
    "ErrImageNeverPull": "image",
    "InvalidImageName": "image",
    "ImageInspectError": "image",
    "RegistryUnavailable": "image",
    "SignatureValidationFailed": "image",
    "CreateContainerConfigError": "container",
    "CreateContainerError": "container",
    "RunContainerError": "container",
    "PreCreateHookError": "container",
    "PreStartHookError": "container",
    "PostStartHookError": "container",
    "CrashLoopBackOff": "container",  # of an init container that is to run beside the worker
}
# The kubelet has fewer devices than the API server shows: its plugin has yet to register.
_REJECTED = ("UnexpectedAdmissionError", "OutOf")
OVERDUE_S = 2.0  # a pod of a dead node is given up so long after its grace


def view_pod(
    pod: Mapping[str, Any],
    is_node_ready: bool,
    now_wall_s: float,
    clock_offset_s: float,
) -> ObservedPod:
    """A pod as the decision loop sees it.

    Args:
        pod: a Pod object of the job.
        is_node_ready: whether its node's kubelet reports.
        now_wall_s: of the wall clock.
        clock_offset_s: wall clock less the loop's clock.
    """
    metadata, status = pod["metadata"], pod.get("status", {})
    notes = metadata.get("annotations") or {}
    deleting = metadata.get("deletionTimestamp")
    phase = _phase(status)
    lingers = phase == "running" and _worker_ended(status)
    if lingers:
        phase = "ended"
    if deleting and not is_node_ready and now_wall_s > wall_s(deleting) + OVERDUE_S:
        phase = "ended"
    created = notes.get(CREATED_ANNOTATION)
    cause, problem = _problem(status, phase)
    leaves_at_s = wall_s(deleting) - RELEASE_BEFORE_S - clock_offset_s if deleting else None
    created_wall_s = float(created) if created else wall_s(metadata["creationTimestamp"])
    return ObservedPod(
        name=metadata["name"],
        node=notes[NODE_ANNOTATION],
        ordinal=int(notes[ORDINAL_ANNOTATION]),
        gpus=requested_gpus(pod["spec"]),
        phase=phase,
        address=_address(status, agent_port(pod["spec"])) if phase == "running" else None,
        deleting=deleting is not None,
        leaving_at_s=leaves_at_s,
        created_s=created_wall_s - clock_offset_s,
        notice=_disruption(status),
        problem=problem,
        cause=cause,
        lingers=lingers,
    )


def _phase(status: Mapping[str, Any]) -> PodPhase:
    found = status.get("phase", "Pending")
    if found in ("Succeeded", "Failed"):
        return "ended"
    return "running" if found == "Running" else "pending"


def _worker_ended(status: Mapping[str, Any]) -> bool:
    """Whether the worker of a pod that runs has ended: a sidecar runs on, and holds its GPUs."""
    return any(
        row.get("name") == WORKER and "terminated" in (row.get("state") or {})
        for row in status.get("containerStatuses") or ()
    )


def _address(status: Mapping[str, Any], port: int) -> str | None:
    address = status.get("podIP")
    if not address:
        return None
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _disruption(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition.get("status") == "True":
            return f"it is to be disrupted ({condition.get('reason', 'no reason given')})"
    return ""


def _problem(status: Mapping[str, Any], phase: PodPhase) -> tuple[StartCause, str]:
    """Which kind of problem keeps a pod from starting, and the cluster's words; "" if none."""
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    if phase == "ended":
        is_rejected = str(status.get("reason") or "").startswith(_REJECTED)
        return "rejected" if is_rejected else "crash", _last_words(status, containers)
    if phase == "running":
        return "container", ""
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            return _STUCK[waiting["reason"]], _sentence(waiting["reason"], waiting.get("message"))
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            reason = condition.get("reason") or "Unschedulable"
            return "scheduling", _sentence(reason, condition.get("message"))
    return "container", ""


def _last_words(status: Mapping[str, Any], containers: Iterable[Mapping[str, Any]]) -> str:
    for container in containers:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            reason = ended.get("reason") or "Error"
            why = "" if reason == "Error" else f" ({reason})"
            return _sentence(
                f"{container['name']} ended with exit status {ended['exitCode']}{why}",
                ended.get("message"),
            )
    return _sentence(status.get("reason") or "", status.get("message"))


def _sentence(reason: str, message: str | None) -> str:
    lines = (message or "").strip().splitlines()
    return f"{reason}: {lines[-1]}" if lines else reason
