"""Which GPUs of which node a pod holds, as the scheduler counts them.

Invariant: a pod that ended holds nothing; one that terminates holds its GPUs until it is gone.
Source: Kubernetes' scheduler, "effective requests" of pods with init containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """GPUs of a node that a pod holds.

    Attributes:
        pod_uid: of the pod.
        owner_uid: of the pod's controller; "" without one.
    """

    pod_uid: str
    node: str
    gpus: int
    owner_uid: str = ""


def allocation_of(pod: Mapping[str, Any]) -> GpuAllocation | None:
    """What a Pod object has allocated; None if it holds no GPU."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    node = spec.get("nodeName") or status.get("nominatedNodeName")
    gpus = requested_gpus(spec)
    if not node or not gpus or status.get("phase") in ("Succeeded", "Failed"):
        return None
    metadata = pod["metadata"]
    return GpuAllocation(metadata["uid"], node, gpus, owner_uid(metadata))


def requested_gpus(spec: Mapping[str, Any]) -> int:
    """max(containers and restartable init containers together, each other init container)."""
    together, alone = 0, [0]
    for container in spec.get("containers") or ():
        together += _gpus(container)
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            together += _gpus(container)
        else:
            alone.append(_gpus(container))
    return max(together, *alone)


def gpus_held(allocations: Iterable[GpuAllocation], job_uid: str) -> dict[str, tuple[int, int]]:
    """By node: GPUs that pods of the job hold, and GPUs that all others hold."""
    held: dict[str, tuple[int, int]] = {}
    for allocation in allocations:
        own, others = held.get(allocation.node, (0, 0))
        if allocation.owner_uid == job_uid:
            own += allocation.gpus
        else:
            others += allocation.gpus
        held[allocation.node] = own, others
    return held


def owner_uid(metadata: Mapping[str, Any]) -> str:
    """Uid of the controller in an object's metadata; "" without one."""
    owners = metadata.get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def _gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    found = (resources.get("requests") or {}).get(GPU, (resources.get("limits") or {}).get(GPU, 0))
    return int(found)
