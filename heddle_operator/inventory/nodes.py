"""From Node objects to the nodes that a job may use: type, free GPUs, joining, leaving.

Two rules cost others their jobs.  Capacity 0 means that the device plugin has not said yet (the
kubelet restarted), never that GPUs are lost; allocatable below capacity means an unhealthy GPU.
Invariant: a node that takes no new pods still counts with the GPUs that the job holds there.
Source: research on Kubernetes' node conditions and NVIDIA's device plugin; design, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from heddle_operator.inventory.accelerators import gpu_type_of
from heddle_operator.inventory.disruptions import first_to_end, notices_of
from heddle_operator.inventory.filters import refusal_of
from heddle_operator.inventory.quantities import whole
from heddle_operator.inventory.requests import GPU
from heddle_operator.state.snapshot import ObservedNode
from planner.wording import counted

LINK_DOMAINS = ("heddle.dev/link-domain", "nvidia.com/gpu.clique", "topology.kubernetes.io/zone")


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """What a job asks of its nodes.

    Attributes:
        pod_spec: of its pods: tolerations, nodeSelector, affinity.
        leave_on_cordon: a cordon is a notice.
        gpu_types: those with a profile for its model.
    """

    pod_spec: Mapping[str, Any]
    leave_on_cordon: bool
    gpu_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a job sees it.

    Attributes:
        seen: None if its GPUs are of no type that the job can plan with.
        why: why it takes no new pods, or will be gone; "" if neither.
    """

    name: str
    seen: ObservedNode | None
    why: str = ""


def view_node(
    node: Mapping[str, Any],
    held: tuple[int, int],
    required: NodeRequirements,
    joined_at_s: float,
    now: float,
    clock_offset_s: float = 0.0,
    lent: int = 0,
    noticed_s: Mapping[str, float] = MappingProxyType({}),
) -> NodeView | None:
    """A node as a job sees it; None if it has no GPUs, and never had any of the job's.

    Args:
        node: a Node object.
        held: GPUs that pods of the job hold there, and that others hold.
        required: what the job asks of its nodes.
        joined_at_s: since when it is usable.
        now: by the same clock.
        clock_offset_s: wall clock less that clock.
        lent: GPUs of those that others hold which other jobs hold.
        noticed_s: when each notice was seen first, by its words; by the same clock.
    """
    metadata, status = node["metadata"], node.get("status", {})
    name, labels = metadata["name"], metadata.get("labels") or {}
    own, others = held
    capacity = _count(status.get("capacity"))
    if capacity == 0 and own == 0:
        return None
    gpu_type, problem = gpu_type_of(labels, metadata.get("annotations") or {})
    if not problem and gpu_type not in required.gpu_types:
        known = ", ".join(required.gpu_types) or "none"
        problem = f"is of GPU type {gpu_type}, for which the model has no profile (it has: {known})"
    if problem:
        return NodeView(name, None, problem)
    # Until the device plugin has said, the job's own pods are all that is known.
    free = _count(status.get("allocatable")) - others if capacity else own
    notices = notices_of(node, required.leave_on_cordon)
    first = first_to_end(notices, noticed_s, now, clock_offset_s)
    refusal = first[0].why if first else refusal_of(node, required.pod_spec)
    gpus = max(0, min(free, own) if refusal else free)
    lent = 0 if refusal else max(0, lent + min(free, 0))
    if not gpus and not refusal:
        refusal = f"has no free GPU (other pods hold {others} of {capacity})"
    seen = ObservedNode(
        name,
        gpu_type,
        gpus,
        joined_at_s,
        first[1] if first else None,
        next((labels[key] for key in LINK_DOMAINS if labels.get(key)), "default"),
        is_ready=is_ready(node),
        is_cordoned=bool(node.get("spec", {}).get("unschedulable")),
        lent=lent,
    )
    return NodeView(name, seen, refusal)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether the kubelet reports, and reports that it is well."""
    return any(
        c["type"] == "Ready" and c.get("status") == "True"
        for c in node.get("status", {}).get("conditions") or ()
    )


def ready_since(node: Mapping[str, Any]) -> float:
    """When the node became ready, in seconds of the wall clock; 0 if nobody says."""
    for condition in node.get("status", {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition.get("lastTransitionTime"):
            return wall_s(condition["lastTransitionTime"])
    return 0.0


def wall_s(text: str) -> float:
    """Seconds of the wall clock of a Kubernetes time."""
    return datetime.fromisoformat(text).timestamp()


def unhealthy_pods(
    node: Mapping[str, Any], held: tuple[int, int], pods: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Pods of the job with an unhealthy GPU, and how it is known.

    Args:
        node: a Node object.
        held: GPUs that pods of the job hold there, and that others hold.
        pods: the job's Pod objects on that node.
    """
    found: dict[str, str] = {}
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses") or ():
            for resource in status.get("allocatedResourcesStatus") or ():
                for device in resource.get("resources") or ():
                    if device.get("health") == "Unhealthy":
                        found[pod["metadata"]["name"]] = (
                            f"its GPU {device['resourceID']} is unhealthy"
                        )
    status = node.get("status", {})
    capacity, allocatable = _count(status.get("capacity")), _count(status.get("allocatable"))
    if capacity and sum(held) > allocatable and not found and held[1] == 0:
        why = f"its node has {counted(capacity - allocatable, 'unhealthy GPU')} of {capacity}"
        found = {pod["metadata"]["name"]: why for pod in pods}
    return found


def _count(resources: Mapping[str, Any] | None) -> int:
    return whole((resources or {}).get(GPU, 0))
