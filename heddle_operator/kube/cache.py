"""The objects that watches and lists have brought: nodes, allocated GPUs, quotas, the jobs' own.

Invariant: an object never goes back to an older resourceVersion, and one that was deleted comes
back only in a newer one; so events, lists and answers to writes may arrive in any order.
Source: Kubernetes' informers (client-go `cache.Store`).
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from heddle_operator.apis.labels import JOB_LABEL
from heddle_operator.inventory.requests import GPU, GpuAllocation, allocation_of, owner_uid

Body = dict[str, Any]
GONE_KEPT = 4096  # uids and versions of deleted objects that a late answer may still name


class ObjectCache:
    """An informer cache of nodes, allocated GPUs, quotas, pods and ConfigMaps.

    Args:
        on_change: gets the uid of the job whose objects changed, or "" if all jobs may care.
        on_quota: gets the namespace of a quota that changed.
    """

    def __init__(
        self,
        on_change: Callable[[str], None] = lambda _: None,
        on_quota: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.nodes: dict[str, Body] = {}
        self.allocations: dict[str, GpuAllocation] = {}
        self._own: dict[str, Body] = {}  # pods and ConfigMaps of jobs, by uid
        self._quotas: dict[str, Body] = {}  # by uid
        self._strangers: set[str] = set()  # uids of pods that are no job's, and may hold GPUs
        self._gone: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._on_change = on_change
        self._on_quota = on_quota

    def own(self, kind: str, namespace: str, job_uid: str) -> tuple[Body, ...]:
        """The job's objects of a kind, by name.

        Whoever may write in another namespace can name the job as an owner there, too; an owner is
        of the same namespace.
        """
        found = [
            body
            for body in self._own.values()
            if body["kind"] == kind
            and _namespace_of(body) == namespace
            and owner_uid(body["metadata"]) == job_uid
        ]
        return tuple(sorted(found, key=lambda body: str(body["metadata"]["name"])))

    def quotas(self, namespace: str) -> tuple[Body, ...]:
        """The ResourceQuotas of a namespace, by name."""
        found = [body for body in self._quotas.values() if _namespace_of(body) == namespace]
        return tuple(sorted(found, key=lambda body: str(body["metadata"]["name"])))

    def put_quota(self, quota: Mapping[str, Any]) -> None:
        """Take over a ResourceQuota."""
        uid = quota["metadata"]["uid"]
        old = self._quotas.get(uid)
        if old is not None and _is_older(quota, old):
            return
        self._quotas[uid] = dict(quota)
        if old is None or _without_version(old) != _without_version(quota):
            self._on_quota(_namespace_of(quota))

    def drop_quota(self, uid: str) -> None:
        """Forget a ResourceQuota: it was deleted, or may not be read any more."""
        old = self._quotas.pop(uid, None)
        if old is not None:
            self._on_quota(_namespace_of(old))

    def keep_quotas(self, namespace: str, uids: Collection[str], version: int) -> None:
        """Forget the quotas that a full list does not hold; see `keep_only`."""
        for uid in _missing(self._quotas, namespace, uids, version):
            self.drop_quota(uid)

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
        is_labelled = JOB_LABEL in (metadata.get("labels") or {})
        if is_labelled and self._is_late(body):  # of pods of others only one watch tells, in order
            return
        if kind == "Pod":
            (self._strangers.discard if is_labelled else self._strangers.add)(uid)
            self._allocate(uid, allocation_of(body))
        if not is_labelled or not owner_uid(metadata):
            return
        old = self._own.get(uid)
        if old is not None and _is_older(body, old):
            return
        kept = {key: value for key, value in metadata.items() if key != "managedFields"}
        self._own[uid] = {**body, "kind": kind, "metadata": kept}
        self._on_change(owner_uid(metadata))

    def drop(self, uid: str, version: int = sys.maxsize) -> None:
        """Forget a Pod or a ConfigMap: in that version it was deleted, or is no job's any more."""
        self._forget(uid, version)
        if uid not in self._strangers:
            self._allocate(uid, None)
        old = self._own.pop(uid, None)
        if old is not None:
            self._on_change(owner_uid(old["metadata"]))

    def release(self, uid: str) -> None:
        """A pod of somebody else holds no GPU any more."""
        self._strangers.discard(uid)
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
        held = {uid: body for uid, body in self._own.items() if body["kind"] == kind}
        for uid in _missing(held, namespace, uids, version):
            self.drop(uid, version)

    def _forget(self, uid: str, version: int) -> None:
        self._gone[uid] = version
        self._gone.move_to_end(uid)
        while len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)

    def _is_late(self, body: Mapping[str, Any]) -> bool:
        """Whether it is from before its deletion."""
        metadata = body["metadata"]
        gone = self._gone.get(metadata["uid"])
        return gone is not None and int(metadata.get("resourceVersion") or 0) < gone

    def _allocate(self, uid: str, allocation: GpuAllocation | None) -> None:
        if self.allocations.get(uid) == allocation:
            return
        if allocation is None:
            self.allocations.pop(uid, None)
        else:
            self.allocations[uid] = allocation
        self._on_change("")


def _missing(
    held: Mapping[str, Body], namespace: str, uids: Collection[str], version: int
) -> tuple[str, ...]:
    """Uids of what is held, was there before a list of that version, and is not in it."""
    return tuple(
        uid
        for uid, body in held.items()
        if uid not in uids
        and namespace in ("", _namespace_of(body))
        and int(body["metadata"].get("resourceVersion") or 0) <= version
    )


def _namespace_of(body: Mapping[str, Any]) -> str:
    return str(body["metadata"].get("namespace", ""))


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
