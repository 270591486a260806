"""Which GPUs of which node a pod holds, as the scheduler counts them, or claims.

Invariant: a pod that ended holds nothing; one that terminates holds its GPUs until it is gone.  One
that is not bound yet claims those of the node that it is tied to; `inventory/claims.py` says for
how long.
Source: Kubernetes' scheduler, "effective requests" of pods with init containers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from heddle_operator.inventory.quantities import amount, whole

GPU = "nvidia.com/gpu"
DEFAULT_SCHEDULER = "default-scheduler"
Requests = Mapping[str, Decimal]  # by resource, in its own unit


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pod that waits for the scheduler may, or may never, get what it claims.

    Attributes:
        scheduler: that is to bind it.
        since: when a scheduler last found no room for it, else when it was made; "" if nobody says.
        requests: of the pod.
        spec: of the pod: its tolerations, nodeSelector and affinity.
    """

    scheduler: str
    since: str
    requests: Requests
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAllocation:
    """GPUs of a node that a pod holds or claims.

    Attributes:
        owner_uid: of the pod's controller; "" without one.
        is_bound: it has them; else it waits for the scheduler.
        pod: its name.
        waiting: what it waits with; None once it is bound.
    """

    node: str
    gpus: int
    owner_uid: str = ""
    is_bound: bool = True
    namespace: str = ""
    pod: str = ""
    waiting: Waiting | None = None

    @property
    def owner(self) -> tuple[str, str]:
        """Namespace and uid of the controller; an owner is of the namespace of what it owns."""
        return self.namespace, self.owner_uid


def allocation_of(pod: Mapping[str, Any]) -> GpuAllocation | None:
    """GPUs that a Pod object has allocated or reserves; None if it has none."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    bound_to = spec.get("nodeName") or status.get("nominatedNodeName")
    node = bound_to or ("" if spec.get("schedulingGates") else _tied_to(spec))
    gpus = requested_gpus(spec)
    if not node or not gpus or status.get("phase") in ("Succeeded", "Failed"):
        return None
    metadata = pod["metadata"]
    return GpuAllocation(
        node=node,
        gpus=gpus,
        owner_uid=owner_uid(metadata),
        is_bound=bool(bound_to),
        namespace=str(metadata.get("namespace", "")),
        pod=str(metadata.get("name", "")),
        waiting=None if bound_to else _waiting(pod),
    )


def node_of(pod: Mapping[str, Any]) -> str:
    """The node whose room a pod takes; "" if it takes none, as it waits or has ended."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return ""
    return str(spec.get("nodeName") or status.get("nominatedNodeName") or "")


def requests_of(spec: Mapping[str, Any]) -> Requests:
    """By resource: what the scheduler counts for a pod, and the pod itself among `pods`."""
    together: dict[str, Decimal] = {}
    alone: dict[str, Decimal] = {}
    for container in spec.get("containers") or ():
        _add(together, _asked(container))
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(together, _asked(container))
            continue
        for name, asked in _asked(container).items():
            alone[name] = max(asked, alone.get(name, asked))
    found = {name: max(together.get(name, asked), asked) for name, asked in alone.items()}
    found = {**together, **found}
    _add(found, {name: amount(asked) for name, asked in (spec.get("overhead") or {}).items()})
    return {**found, "pods": Decimal(1)}


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


def gpus_held(
    allocations: Iterable[GpuAllocation], job: tuple[str, str]
) -> dict[str, tuple[int, int]]:
    """By node: GPUs that pods of the job (namespace, uid) hold or claim, and that all others do.

    Where the job has pods itself, the claims of others are left out: who gets there first is the
    scheduler's matter.
    """
    own: dict[str, int] = {}
    others: dict[str, int] = {}
    claims: dict[str, int] = {}
    for allocation in allocations:
        is_own = allocation.owner == job
        rows = own if is_own else others if allocation.is_bound else claims
        rows[allocation.node] = rows.get(allocation.node, 0) + allocation.gpus
    return {
        node: (own[node], others.get(node, 0))
        if node in own
        else (0, others.get(node, 0) + claims.get(node, 0))
        for node in own | others | claims
    }


def gpus_of_others(
    allocations: Iterable[GpuAllocation], job: tuple[str, str], jobs: Collection[str]
) -> dict[str, int]:
    """By node: GPUs among those that `gpus_held` counts as others' which these jobs hold."""
    theirs = [a for a in allocations if a.owner == job or a.owner_uid in jobs]
    return {node: others for node, (_, others) in gpus_held(theirs, job).items()}


def owner_uid(metadata: Mapping[str, Any]) -> str:
    """Uid of the controller in an object's metadata; "" without one."""
    owners = metadata.get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def _waiting(pod: Mapping[str, Any]) -> Waiting:
    spec, metadata = pod["spec"], pod["metadata"]
    refused = [
        str(condition.get("lastTransitionTime") or "")
        for condition in pod.get("status", {}).get("conditions") or ()
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    return Waiting(
        str(spec.get("schedulerName") or DEFAULT_SCHEDULER),
        next(filter(None, refused), str(metadata.get("creationTimestamp") or "")),
        requests_of(spec),
        {key: spec[key] for key in ("tolerations", "nodeSelector", "affinity") if key in spec},
    )


def _add(total: dict[str, Decimal], more: Requests) -> None:
    for name, asked in more.items():
        total[name] = total.get(name, Decimal(0)) + asked


def _asked(container: Mapping[str, Any]) -> Requests:
    """Requests of a container; a limit without a request counts as one."""
    resources = container.get("resources") or {}
    rows = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(asked) for name, asked in rows.items()}


def _tied_to(spec: Mapping[str, Any]) -> str:
    """The one node that a pod may run on by its own word; "" if it names none or several."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    names = {
        tuple(field.get("values") or ())
        for term in terms
        for field in term.get("matchFields") or ()
        if field.get("key") == "metadata.name" and field.get("operator") == "In"
    }
    if len(names) == 1 and all(term.get("matchFields") for term in terms):
        (values,) = names
        return str(values[0]) if len(values) == 1 else ""
    return str((spec.get("nodeSelector") or {}).get("kubernetes.io/hostname") or "")


def _gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    found = (resources.get("requests") or {}).get(GPU, (resources.get("limits") or {}).get(GPU, 0))
    return whole(found)
