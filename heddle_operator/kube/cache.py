"""The objects that watches and lists have brought: nodes, allocated GPUs, quotas, the jobs' own.

Invariant: an object never goes back to an older resourceVersion, and one that was deleted comes
back only in a newer one; so events, lists and answers to writes may arrive in any order.
Source: Kubernetes' informers (client-go `cache.Store`).
"""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol
from weakref import WeakSet

from heddle_operator.apis.labels import JOB_LABEL, NODE_ANNOTATION
from heddle_operator.inventory.cluster_nodes import ClusterNodes
from heddle_operator.inventory.host_ports import NodePorts
from heddle_operator.inventory.requests import (
    GPU,
    GpuAllocation,
    allocation_of,
    node_of,
    owner_uid,
    requests_of,
)

Body = dict[str, Any]
GONE_KEPT = 4096  # uids and versions of deleted objects that a late answer may still name


class Follower(Protocol):
    """Is told of changed nodes, and finds out whether that concerns it."""

    def node_changed(self, name: str) -> None:
        """A Node, or what pods have of it, is not what it was."""


class ObjectCache:
    """An informer cache of nodes, allocated GPUs, quotas, pods and ConfigMaps.

    Args:
        on_change: gets the uid of the job whose own objects changed.
        on_quota: gets the namespace of a quota that changed.

    Attributes:
        inventory: the nodes, and what pods have of them.
        followers: of the nodes; one that nobody else holds is forgotten.
    """

    def __init__(
        self,
        on_change: Callable[[str], None] = lambda _: None,
        on_quota: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.inventory = ClusterNodes()
        self.followers: WeakSet[Follower] = WeakSet()
        self._node_versions: dict[str, Body] = {}  # newest metadata, also where nothing changed
        self._own: dict[str, Body] = {}  # pods and ConfigMaps of jobs, by uid
        self._owned: dict[tuple[str, str, str], dict[str, Body]] = {}  # the same by whose they are
        self._quotas: dict[str, Body] = {}  # by uid
        self._bound_ports = NodePorts()
        self._made_ports = NodePorts()  # of the jobs' pods, by the node that each is made for
        self._strangers: set[str] = set()  # uids of pods that are no job's, and may hold GPUs
        self._gone: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._on_change = on_change
        self._on_quota = on_quota

    @property
    def nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """Nodes by name, as far as anything of them is read."""
        return self.inventory.nodes

    @property
    def allocations(self) -> Mapping[str, GpuAllocation]:
        """GPUs that pods hold or claim, by the pod's uid."""
        return self.inventory.allocations

    def own(self, kind: str, namespace: str, job_uid: str) -> tuple[Body, ...]:
        """The job's objects of a kind, by name.

        Whoever may write in another namespace can name the job as an owner there, too; an owner is
        of the same namespace.
        """
        found = self._owned.get((kind, namespace, job_uid), {}).values()
        return tuple(sorted(found, key=lambda body: str(body["metadata"]["name"])))

    def host_ports(self, node: str) -> frozenset[int]:
        """The ports of a node that pods there have, or pods that are made for it."""
        return self._bound_ports.of(node) | self._made_ports.of(node)

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
        slim, known = _slim_node(node), self._node_versions.get(name)
        if known is not None and _is_older(slim, {"metadata": known}):
            return
        self._node_versions[name] = slim["metadata"]
        old = self.nodes.get(name)
        if old is None or _without_version(old) != _without_version(slim):
            self.inventory.put_node(name, slim, time.monotonic())
            self._tell(name)

    def drop_node(self, name: str) -> None:
        """Forget a Node."""
        self._node_versions.pop(name, None)
        if self.inventory.drop_node(name):
            self._tell(name)

    def put(self, kind: str, body: Mapping[str, Any]) -> None:
        """Take over a Pod or a ConfigMap."""
        metadata = body["metadata"]
        uid = metadata["uid"]
        is_labelled = JOB_LABEL in (metadata.get("labels") or {})
        old = self._own.get(uid)
        # Of pods of others only one watch tells, in order.
        if (is_labelled and self._is_late(body)) or (old is not None and _is_older(body, old)):
            return
        if kind == "Pod":
            (self._strangers.discard if is_labelled else self._strangers.add)(uid)
            self._allocate(uid, body)
        owner = owner_uid(metadata) if is_labelled else ""  # anybody may take either off
        if old is not None and owner_uid(old["metadata"]) != owner:
            self._forget(uid, int(metadata.get("resourceVersion") or 0))
            self._disown(uid)
        if not owner:
            return
        kept = {key: value for key, value in metadata.items() if key != "managedFields"}
        self._remove(uid)
        self._own[uid] = {**body, "kind": kind, "metadata": kept}
        self._owned.setdefault(_owner(self._own[uid]), {})[uid] = self._own[uid]
        if kind == "Pod":
            self._made_ports.take(uid, _made_for(body), body)
        self._on_change(owner)

    def drop(self, uid: str, version: int = sys.maxsize) -> None:
        """Forget a Pod or a ConfigMap: in that version it was deleted, or is no job's any more."""
        self._forget(uid, version)
        if uid not in self._strangers:
            self._allocate(uid, None)
        self._disown(uid)

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

    def _disown(self, uid: str) -> None:
        """An object is no job's any more."""
        old = self._remove(uid)
        if old is not None:
            self._on_change(owner_uid(old["metadata"]))

    def _remove(self, uid: str) -> Body | None:
        old = self._own.pop(uid, None)
        self._made_ports.release(uid)
        if old is not None:
            rows = self._owned[_owner(old)]
            del rows[uid]
            if not rows:
                del self._owned[_owner(old)]
        return old

    def _allocate(self, uid: str, pod: Mapping[str, Any] | None) -> None:
        """Take over what a pod has of a node; None: nothing any more."""
        node = node_of(pod) if pod is not None else ""
        self._bound_ports.take(uid, node, pod or {})
        requests = requests_of(pod["spec"]) if pod is not None and node else {}
        self.inventory.request(uid, node, requests)
        allocation = allocation_of(pod) if pod is not None else None
        for name in self.inventory.allocate(uid, allocation):
            self._tell(name)

    def _tell(self, node: str) -> None:
        for follower in tuple(self.followers):
            follower.node_changed(node)


def _owner(body: Body) -> tuple[str, str, str]:
    return body["kind"], _namespace_of(body), owner_uid(body["metadata"])


def _made_for(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(NODE_ANNOTATION, ""))


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
    """Fields of a node that the jobs read; a heartbeat changes none of them."""
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
            "allocatable": {GPU: "0", **(status.get("allocatable") or {})},
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
