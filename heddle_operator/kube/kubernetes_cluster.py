"""The seam `Cluster` on Kubernetes: reads from the cache, writes to the API server.

Invariant: an epoch is adopted by creating its ConfigMap, sealed and closed by writes with its
resourceVersion as precondition; whoever comes second gets `ClusterConflict`.  A write's answer goes
into the cache at once, so that the next look sees it before the watch tells of it.
Source: design, section 5; research on drains: pods are deleted first, the budget is lowered then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from heddle_operator.apis.errors import ClusterConflict, ClusterUnavailable
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import NODE_ANNOTATION
from heddle_operator.inventory.nodes import (
    NodeRequirements,
    NodeView,
    is_ready,
    ready_since,
    unhealthy_pods,
    view_node,
)
from heddle_operator.inventory.pods import view_pod
from heddle_operator.inventory.requests import gpus_held, owner_uid
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.ports.cluster import ClusterAction
from heddle_operator.ports.trigger import Trigger
from heddle_operator.resources.epoch_config_map import epoch_name, record_of_body, record_to_body
from heddle_operator.resources.pods import WorkerDefaults, pod_body, pod_spec_of
from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    PruneEpoch,
    SealEpoch,
)
from heddle_operator.state.epoch_records import adopted, check_prunable, closed, sealed
from heddle_operator.state.plan_reference import read_plan_reference
from heddle_operator.state.snapshot import (
    EpochRecord,
    Observed,
    ObservedPod,
    ReferencedPlan,
    RefusedPod,
)

LOG = logging.getLogger(__name__)
# Nothing of a pod that the operator deletes is worth keeping, and its GPUs may be waited for.
DELETE_GRACE_S = 1
REFERENCE_S = 4.0  # the ConfigMap of `planRef` is read again after so long
HeldNodes = Mapping[str, tuple[int, int]]


class KubeCluster:
    """One job's part of a cluster.

    Args:
        job: with the uid that its objects are owned by.
        api: of the cluster.
        cache: fed from outside, by watches or by lists.
        defaults: what an administrator gives all worker pods.
        gpu_types: those with a profile for the job's model.
        trigger: set on what the cache does not hold; who feeds the cache sets it for all else.
    """

    def __init__(
        self,
        job: HeddleJob,
        api: KubeApi,
        cache: ObjectCache,
        defaults: WorkerDefaults,
        gpu_types: tuple[str, ...],
        trigger: Trigger,
    ) -> None:
        self.job = job
        self._api = api
        self._cache = cache
        self._defaults = defaults
        self._gpu_types = gpu_types
        self._trigger = trigger
        # Wall clock less the loop's clock; fixed, so that records read twice are equal.
        self._offset_s = time.time() - time.monotonic()
        self._joined: dict[str, float] = {}
        self._has_looked = False
        self._refusals: dict[str, RefusedPod] = {}
        self._records: dict[tuple[str, str], EpochRecord] = {}
        self._deleted: set[str] = set()  # uids; deleting again would only ask the server again
        self._referenced: tuple[float, ReferencedPlan | None] = (0.0, None)

    async def observe(self) -> Observed:
        """Nodes, pods and epoch records, as the cache holds them."""
        now = time.monotonic()
        held = gpus_held(self._cache.allocations.values(), self.job.metadata.uid)
        views = self._views(held, now)
        pods = self._pods(held)
        names = {pod.name for pod in pods}
        self._deleted &= {
            body["metadata"]["uid"] for body in self._cache.own("Pod", self.job.metadata.uid)
        }
        self._refusals = {n: r for n, r in self._refusals.items() if n not in names}
        return Observed(
            nodes=tuple(view.seen for view in views if view.seen is not None),
            pods=pods,
            epochs=tuple(record for record, _ in self._epochs()),
            unusable=tuple((view.name, view.why) for view in views if view.why),
            refusals=tuple(self._refusals[name] for name in sorted(self._refusals)),
            referenced=await self._referenced_plan(now),
        )

    async def apply(self, action: ClusterAction) -> None:
        """Do one thing; see `Cluster`.

        Raises:
            ClusterConflict: somebody else was first.
            ClusterUnavailable: the API server did not do it, and may do it later.
        """
        try:
            match action:
                case CreatePod():
                    await self._create(action)
                case DeletePod():
                    await self._delete(action)
                case AdoptPlan():
                    await self._adopt(action)
                case SealEpoch() | CloseEpoch():
                    await self._write(action)
                case PruneEpoch():
                    await self._prune(action)
        except ApiRefused as error:
            raise ClusterUnavailable(str(error)) from None

    def _views(self, held: HeldNodes, now: float) -> tuple[NodeView, ...]:
        spec = pod_spec_of(self.job, self._defaults)
        required = NodeRequirements(spec, self.job.spec.elastic.leave_on_cordon, self._gpu_types)
        views = []
        for name in sorted(self._cache.nodes):
            node = self._cache.nodes[name]
            # Nodes that were there before this operator have waited long enough already.
            since = now if self._has_looked else ready_since(node) - self._offset_s
            joined = self._joined.get(name, since)
            view = view_node(node, held.get(name, (0, 0)), required, joined, now)
            is_usable = view is not None and view.seen is not None and view.seen.gpus > 0
            if is_usable:
                self._joined[name] = joined
            else:
                self._joined.pop(name, None)
            if view is not None:
                views.append(view)
        self._has_looked = self._has_looked or bool(self._cache.nodes)
        return tuple(views)

    def _pods(self, held: HeldNodes) -> tuple[ObservedPod, ...]:
        bodies = self._cache.own("Pod", self.job.metadata.uid)
        by_node: dict[str, list[Mapping[str, Any]]] = {}
        for body in bodies:
            by_node.setdefault(body["metadata"]["annotations"][NODE_ANNOTATION], []).append(body)
        unhealthy: dict[str, str] = {}
        for name, rows in by_node.items():
            if name in self._cache.nodes:
                unhealthy |= unhealthy_pods(self._cache.nodes[name], held.get(name, (0, 0)), rows)
        now_wall_s, found = time.time(), []
        for body in bodies:
            node = self._cache.nodes.get(body["metadata"]["annotations"][NODE_ANNOTATION])
            ready = node is not None and is_ready(node)
            notice = unhealthy.get(body["metadata"]["name"], "")
            found.append(view_pod(body, notice, ready, now_wall_s, self._offset_s))
        return tuple(found)

    def _epochs(self) -> list[tuple[EpochRecord, Mapping[str, Any]]]:
        """The records with their ConfigMaps, oldest first."""
        found, kept = [], {}
        for body in self._cache.own("ConfigMap", self.job.metadata.uid):
            key = (body["metadata"]["uid"], body["metadata"]["resourceVersion"])
            record = self._records.get(key) or record_of_body(body, self._offset_s)
            kept[key] = record
            found.append((record, body))
        self._records = kept
        return sorted(found, key=lambda pair: pair[0].epoch)

    async def _referenced_plan(self, now: float) -> ReferencedPlan | None:
        name = self.job.spec.plan_ref
        if name is None:
            return None
        read_s, referenced = self._referenced
        if referenced is None or referenced.name != name or now - read_s > REFERENCE_S:
            try:
                body = await self._api.get(f"{self._path('configmaps')}/{name}")
            except ApiRefused as error:
                referenced = ReferencedPlan(name, None, str(error))
            else:
                referenced = read_plan_reference(name, body.get("data") or {})
            self._referenced = (now, referenced)
        return referenced

    async def _create(self, action: CreatePod) -> None:
        body = pod_body(self.job, action, self._defaults, time.time())
        try:
            made = await self._api.create(self._path("pods"), body)
        except ApiRefused as error:
            if error.status == 409 and await self._is_ours(action.name):
                return
            if error.status == 0:
                raise
            LOG.warning("job=%s pod %s is refused: %s", self.job.name, action.name, error)
            refused = RefusedPod(action.name, str(error), time.monotonic())
            self._refusals[action.name] = refused
            self._trigger.set()
        else:
            self._refusals.pop(action.name, None)
            self._cache.put("Pod", made)

    async def _is_ours(self, name: str) -> bool:
        """Whether the pod of that name is this job's, and not that of one that was deleted."""
        try:
            body = await self._api.get(f"{self._path('pods')}/{name}")
        except ApiRefused:
            return False
        self._cache.put("Pod", body)
        return owner_uid(body["metadata"]) == self.job.metadata.uid

    async def _delete(self, action: DeletePod) -> None:
        for body in self._cache.own("Pod", self.job.metadata.uid):
            uid = body["metadata"]["uid"]
            if body["metadata"]["name"] == action.name and uid not in self._deleted:
                LOG.info("job=%s delete pod %s: %s", self.job.name, action.name, action.why)
                path = f"{self._path('pods')}/{action.name}"
                await self._api.delete(path, DELETE_GRACE_S, uid)
                self._deleted.add(uid)
                await self._look_after_deletion(path, uid)

    async def _look_after_deletion(self, path: str, uid: str) -> None:
        """Take over that the pod is deleting, or gone, before the watch tells."""
        try:
            body = await self._api.get(path)
        except ApiRefused as error:
            if error.status == 404:
                self._cache.drop(uid)
            return
        if body["metadata"]["uid"] == uid:
            self._cache.put("Pod", body)
        else:
            self._cache.drop(uid)

    async def _adopt(self, action: AdoptPlan) -> None:
        record = adopted((held for held, _ in self._epochs()), action, time.monotonic())
        body = record_to_body(self.job, record, self._offset_s)
        try:
            made = await self._api.create(self._path("configmaps"), body)
        except ApiRefused as error:
            if error.status != 409:
                raise
            await self._forget_stale(action.epoch)
            raise ClusterConflict(f"epoch {action.epoch} was adopted already") from None
        self._cache.put("ConfigMap", made)

    async def _forget_stale(self, epoch: int) -> None:
        """Take over the ConfigMap that was there; remove it if an earlier job's was left behind."""
        path = f"{self._path('configmaps')}/{epoch_name(self.job, epoch)}"
        body = await self._api.get(path)
        if owner_uid(body["metadata"]) == self.job.metadata.uid:
            self._cache.put("ConfigMap", body)
        else:
            await self._api.delete(path, uid=body["metadata"]["uid"])

    async def _write(self, action: SealEpoch | CloseEpoch) -> None:
        found = next((pair for pair in self._epochs() if pair[0].epoch == action.epoch), None)
        if found is None:
            raise ClusterConflict(f"epoch {action.epoch} is not on record")
        record, held = found
        if isinstance(action, SealEpoch):
            changed = sealed(record, action)
        else:
            changed = closed(record, action, time.monotonic())
        if changed == record:
            return
        body = record_to_body(self.job, changed, self._offset_s)
        body["metadata"]["resourceVersion"] = held["metadata"]["resourceVersion"]
        path = f"{self._path('configmaps')}/{epoch_name(self.job, action.epoch)}"
        try:
            made = await self._api.replace(path, body)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise
            if error.status == 409:
                self._cache.put("ConfigMap", await self._api.get(path))
            raise ClusterConflict(f"epoch {action.epoch} was written by another operator") from None
        self._cache.put("ConfigMap", made)

    async def _prune(self, action: PruneEpoch) -> None:
        bodies = {record.epoch: body for record, body in self._epochs()}
        check_prunable(bodies, action)
        if action.epoch in bodies:
            uid = bodies[action.epoch]["metadata"]["uid"]
            path = f"{self._path('configmaps')}/{epoch_name(self.job, action.epoch)}"
            await self._api.delete(path, uid=uid)
            self._cache.drop(uid)

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.job.metadata.namespace}/{plural}"
