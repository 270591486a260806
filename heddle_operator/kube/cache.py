"""The objects that watches and lists have brought: nodes, allocated GPUs, and the jobs' own.

Invariant: an object never goes back to an older resourceVersion, and one that was deleted does not
come back; so events, lists and answers to writes may arrive in any order.
Source: Kubernetes' informers (client-go `cache.Store`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Mapping
from typing import Any

from heddle_operator.apis.labels import JOB_LABEL
from heddle_operator.inventory.requests import GPU, GpuAllocation, allocation_of, owner_uid

Body = dict[str, Any]
GONE_KEPT = 4096  # uids of deleted objects that a late answer may still name


class ObjectCache:
    """An informer cache of nodes, allocated GPUs, pods and ConfigMaps.

    Args:
        on_change: gets the uid of the job whose objects changed, or "" if all jobs may care.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda _: None) -> None:
        self.nodes: dict[str, Body] = {}
        self.allocations: dict[str, GpuAllocation] = {}
        self._own: dict[str, Body] = {}  # pods and ConfigMaps of jobs, by uid
        self._gone: collections.deque[str] = collections.deque(maxlen=GONE_KEPT)
        self._on_change = on_change

    def own(self, kind: str, job_uid: str) -> tuple[Body, ...]:
        """The job's objects of a kind, by name."""
        found = [
            body
            for body in self._own.values()
            if body["kind"] == kind and owner_uid(body["metadata"]) == job_uid
        ]
        return tuple(sorted(found, key=lambda body: str(body["metadata"]["name"])))

    def put_node(self, node: Mapping[str, Any]) -> None:
        """Take over a Node."""
        name = node["metadata"]["name"]
        slim = _slim_node(node)
        old = self.nodes.get(name)
        if old is not None and _is_older(slim, old):
            return
        self.nodes[name] = slim
        if old is None or _without_version(old) != _without_version(slim):
            self._on_change("")

    def drop_node(self, name: str) -> None:
        """Forget a Node."""
        if self.nodes.pop(name, None) is not None:
            self._on_change("")

    def put(self, kind: str, body: Mapping[str, Any]) -> None:
        """Take over a Pod or a ConfigMap."""
        metadata = body["metadata"]
        uid = metadata["uid"]
        if uid in self._gone:
            return
        if kind == "Pod":
            self._allocate(uid, allocation_of(body))
        if JOB_LABEL not in (metadata.get("labels") or {}):
            return
        old = self._own.get(uid)
        if old is not None and _is_older(body, old):
            return
        self._own[uid] = {**body, "kind": kind}
        self._on_change(owner_uid(metadata))

    def drop(self, uid: str) -> None:
        """Forget a Pod or a ConfigMap."""
        self._gone.append(uid)
        self._allocate(uid, None)
        old = self._own.pop(uid, None)
        if old is not None:
            self._on_change(owner_uid(old["metadata"]))

    def release(self, uid: str) -> None:
        """A pod of somebody else holds no GPU any more."""
        if uid not in self._own:
            self._allocate(uid, None)

    def keep_only(self, kind: str, namespace: str, uids: Collection[str], version: int) -> None:
        """Forget the objects of a kind that a full list does not hold.

        Args:
            kind: of the objects.
            namespace: that was listed; "": all.
            uids: of what the list holds.
            version: of the list; what is newer was made since.
        """
        for uid, body in tuple(self._own.items()):
            metadata = body["metadata"]
            is_listed = body["kind"] == kind and namespace in ("", metadata.get("namespace"))
            is_old = int(metadata.get("resourceVersion") or 0) <= version
            if is_listed and is_old and uid not in uids:
                self.drop(uid)

    def _allocate(self, uid: str, allocation: GpuAllocation | None) -> None:
        if self.allocations.get(uid) == allocation:
            return
        if allocation is None:
            self.allocations.pop(uid, None)
        else:
            self.allocations[uid] = allocation
        self._on_change("")


def _slim_node(node: Mapping[str, Any]) -> Body:
    """What the jobs read of a node; a heartbeat changes nothing of it."""
    metadata, status = node["metadata"], node.get("status") or {}
    kept = ("name", "uid", "labels", "annotations", "deletionTimestamp", "resourceVersion")
    conditions = [
        {k: v for k, v in condition.items() if k != "lastHeartbeatTime"}
        for condition in status.get("conditions") or ()
    ]
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {k: v for k, v in (node.get("spec") or {}).items() if k in _SPEC_KEPT},
        "status": {
            "capacity": {GPU: (status.get("capacity") or {}).get(GPU, "0")},
            "allocatable": {GPU: (status.get("allocatable") or {}).get(GPU, "0")},
            "conditions": conditions,
        },
    }


_SPEC_KEPT = ("taints", "unschedulable")


def _without_version(body: Mapping[str, Any]) -> Body:
    metadata = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
    return {**body, "metadata": metadata}


def _is_older(body: Mapping[str, Any], held: Mapping[str, Any]) -> bool:
    """Whether an object is older than the one that is held; of the same uid, as numbers."""
    new, old = body["metadata"], held["metadata"]
    if new.get("uid") != old.get("uid"):
        return False
    return int(new.get("resourceVersion") or 0) < int(old.get("resourceVersion") or 0)
