"""From Node objects to the nodes that a job may use: type, free GPUs, joining, leaving.

Two rules cost others their jobs.  Capacity 0 means that the device plugin has not said yet (the
kubelet restarted), never that GPUs are lost; allocatable below capacity means an unhealthy GPU.
Invariant: a node that takes no new pods still counts with the GPUs that the job holds there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from heddle_operator.apis.times import wall_s
from heddle_operator.inventory.accelerators import gpu_type_of
from heddle_operator.inventory.claims import in_words
from heddle_operator.inventory.disruptions import Notice, first_to_end, notices_of
from heddle_operator.inventory.filters import refusal_of
from heddle_operator.inventory.quantities import whole
from heddle_operator.inventory.requests import GPU, GpuAllocation
from heddle_operator.state.snapshot import ObservedNode
from planner.wording import counted

LINK_DOMAINS = ("heddle.dev/link-domain", "nvidia.com/gpu.clique", "topology.kubernetes.io/zone")


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """Requirements of a job on its nodes.

    Attributes:
        pod_spec: of its pods: tolerations, nodeSelector, affinity.
        leave_on_cordon: a cordon is a notice.
        gpu_types: those with a profile for its model.
    """

    pod_spec: Mapping[str, Any]
    leave_on_cordon: bool
    gpu_types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Offer of a Node to every job with the same requirements, whoever holds GPUs there.

    Attributes:
        capacity: GPUs; 0 until the device plugin has said.
        problem: why no job with these requirements can plan with its GPUs; "" if one can.
        is_divided: its GPUs are shared by time or divided, which is the problem.
        refusal: why it takes no new pods, beside its notices; "" if it does.
        ready_since_wall_s: when it became ready, by the wall clock; 0 if nobody says.
    """

    name: str
    capacity: int
    allocatable: int
    gpu_type: str = ""
    problem: str = ""
    is_divided: bool = False
    notices: tuple[Notice, ...] = ()
    refusal: str = ""
    link_domain: str = "default"
    is_ready: bool = True
    is_cordoned: bool = False
    ready_since_wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a job sees it.

    Attributes:
        seen: None if its GPUs are of no type that the job can plan with.
        why: why it takes no new pods, or will be gone; "" if neither.
        is_divided: its GPUs are not whole, which is why.
    """

    name: str
    seen: ObservedNode | None
    why: str = ""
    is_divided: bool = False


def facts_of(node: Mapping[str, Any], required: NodeRequirements) -> NodeFacts:
    """Offer of a Node object to jobs with these requirements."""
    metadata, status = node["metadata"], node.get("status", {})
    name, labels = metadata["name"], metadata.get("labels") or {}
    capacity, allocatable = _count(status.get("capacity")), _count(status.get("allocatable"))
    gpu_type, problem, is_divided = gpu_type_of(labels, metadata.get("annotations") or {})
    if not problem and gpu_type not in required.gpu_types:
        known = ", ".join(required.gpu_types) or "none"
        problem = f"is of GPU type {gpu_type}; the job can use {known}"
    if problem:
        return NodeFacts(
            name=name,
            capacity=capacity,
            allocatable=allocatable,
            gpu_type=gpu_type,
            problem=problem,
            is_divided=is_divided,
        )
    return NodeFacts(
        name=name,
        capacity=capacity,
        allocatable=allocatable,
        gpu_type=gpu_type,
        notices=notices_of(node, required.leave_on_cordon),
        refusal=refusal_of(node, required.pod_spec),
        link_domain=next((labels[key] for key in LINK_DOMAINS if labels.get(key)), "default"),
        is_ready=is_ready(node),
        is_cordoned=bool(node.get("spec", {}).get("unschedulable")),
        ready_since_wall_s=ready_since(node),
    )


def view_node(
    facts: NodeFacts,
    held: tuple[int, int],
    joined_at_s: float,
    now: float,
    clock_offset_s: float = 0.0,
    lent: int = 0,
    noticed_s: Mapping[str, float] = MappingProxyType({}),
    claims: tuple[GpuAllocation, ...] = (),
) -> NodeView | None:
    """A node as a job sees it; None if it has no GPUs, and never had any of the job's.

    Args:
        facts: of the node, read with the job's requirements.
        held: GPUs that pods of the job hold there, and that others hold or claim.
        joined_at_s: since when it is usable.
        now: by the same clock.
        clock_offset_s: wall clock less that clock.
        lent: GPUs of those that others hold which other jobs hold.
        noticed_s: when each notice was seen first, by its words; by the same clock.
        claims: of pods of others that wait, among what others hold.
    """
    name, capacity = facts.name, facts.capacity
    own, others = held
    if capacity == 0 and own == 0:
        return None
    if facts.problem:
        return NodeView(name, None, facts.problem, facts.is_divided)
    # Until the device plugin has said, the job's own pods are all that is known.
    free = facts.allocatable - others if capacity else own
    first = first_to_end(facts.notices, noticed_s, now, clock_offset_s)
    refusal = first[0].why if first else facts.refusal
    gpus = max(0, min(free, own) if refusal else free)
    lent = 0 if refusal else max(0, lent + min(free, 0))
    if not gpus and not refusal:
        refusal = _full(others, capacity, claims)
    seen = ObservedNode(
        name=name,
        gpu_type=facts.gpu_type,
        gpus=gpus,
        joined_at_s=joined_at_s,
        leaving_at_s=first[1] if first else None,
        link_domain=facts.link_domain,
        is_ready=facts.is_ready,
        is_cordoned=facts.is_cordoned,
        lent=lent,
    )
    return NodeView(name, seen, refusal)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether the kubelet reports, and reports that it is well."""
    return ready_since_text(node) is not None


def ready_since(node: Mapping[str, Any]) -> float:
    """When the node became ready, in seconds of the wall clock; 0 if nobody says."""
    for condition in node.get("status", {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition.get("lastTransitionTime"):
            return wall_s(condition["lastTransitionTime"])
    return 0.0


def ready_since_text(node: Mapping[str, Any]) -> str | None:
    """Since when the node has been ready, in its own words; None: it is not."""
    for condition in node.get("status", {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition.get("status") == "True":
            return str(condition.get("lastTransitionTime") or "")
    return None


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


def _full(others: int, capacity: int, claims: tuple[GpuAllocation, ...]) -> str:
    """That no GPU is free, and who holds or claims them."""
    holding = others - sum(claim.gpus for claim in claims)
    said = [f"other pods hold {holding} of {capacity}"] if holding or not claims else []
    return f"has no free GPU ({'; '.join([*said, *([in_words(claims)] if claims else [])])})"


def _count(resources: Mapping[str, Any] | None) -> int:
    return whole((resources or {}).get(GPU, 0))
