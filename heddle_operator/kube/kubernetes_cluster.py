"""The seam `Cluster` on Kubernetes: reads from the cache, writes to the API server.

Invariant: a write's answer goes into the cache at once, so that the next look sees it before the
watch tells of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from heddle_operator.apis.errors import ClusterUnavailable, NoHostPort
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import NODE_ANNOTATION
from heddle_operator.epochs.members import further_pod_name
from heddle_operator.inventory.job_nodes import JobNodes
from heddle_operator.inventory.nodes import NodeRequirements, is_ready, unhealthy_pods
from heddle_operator.inventory.pods import view_pod
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import CONNECTIONS, ApiRefused, Body, KubeApi
from heddle_operator.kube.malformed_objects import MalformedObjects
from heddle_operator.kube.namespace_rules import NamespaceRules
from heddle_operator.kube.paths import object_path
from heddle_operator.kube.pod_events import PodEvents, waits_silently
from heddle_operator.kube.record_store import RecordStore
from heddle_operator.kube.references.plan import PlanReference
from heddle_operator.ports.cluster import ClusterAction
from heddle_operator.ports.refused_pods import RefusedPods
from heddle_operator.ports.trigger import Trigger
from heddle_operator.resources.metadata import owner_of, taken_off, taken_off_words
from heddle_operator.resources.pods import WorkerDefaults, per_gpu_of, pod_body, pod_spec_of, trials
from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    PruneEpoch,
    SealEpoch,
)
from heddle_operator.state.snapshot import Observed, ObservedPod

LOG = logging.getLogger(__name__)
# Nothing of a pod that the operator deletes is worth keeping, and its GPUs may be waited for.
DELETE_GRACE_S = 1
# Half of all requests: a job that makes a thousand pods keeps room for the writes of the others.
PODS_AT_ONCE = CONNECTIONS // 2
GROWTH_PAUSE_S = 0.5  # changes that let a job grow, and that are no other matter of its, are one
MOMENTS_S = 0.25
HeldNodes = Mapping[str, tuple[int, int]]


class KubeCluster:
    """One job's part of a cluster.

    Args:
        job: with the uid that its objects are owned by.
        api: of the cluster.
        cache: fed from outside, by watches or by lists.
        defaults: what an administrator gives all worker pods.
        gpu_types: those with a profile for the job's model.
        trigger: set on what concerns the job, but for its own objects: who feeds the cache does so
            on those.
        token: of the job; what is pinned in its records is signed with it.
        jobs: uids of the jobs among which GPUs are divided.
    """

    def __init__(
        self,
        job: HeddleJob,
        api: KubeApi,
        cache: ObjectCache,
        defaults: WorkerDefaults,
        gpu_types: tuple[str, ...],
        trigger: Trigger,
        token: str,
        jobs: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.job = job
        self._api = api
        self._cache = cache
        self._gpu_types = gpu_types
        self._trigger = trigger
        self._jobs = jobs
        # The server's clock less the loop's; fixed, so that records read twice are equal.
        self._offset_s = api.clock.offset_s
        mine = job.metadata.namespace, job.metadata.uid
        self._refused = RefusedPods()
        self._pod_turns = asyncio.Semaphore(PODS_AT_ONCE)
        self._rules = NamespaceRules(api, cache, job.metadata.namespace, trigger)
        self._pod_events = PodEvents(api, job.metadata.namespace, trigger)
        self._malformed = MalformedObjects()
        self._nodes = JobNodes(cache.inventory, mine, self._offset_s, self._malformed.read)
        # Where a change may concern many jobs, each looks at a moment of its own.
        self._moment_s = MOMENTS_S * zlib.crc32(job.metadata.uid.encode()) / 2**32
        cache.followers.add(self)
        self._store = RecordStore(
            job, api, cache, defaults, trigger, self._malformed, token, self._offset_s
        )
        self._deleted: set[str] = set()  # uids; deleting again would only ask the server again
        self._referenced = PlanReference(api, job.metadata.namespace)

    async def observe(self) -> Observed:
        """Nodes, pods and epoch records, as the cache holds them."""
        now, workers = time.monotonic(), self._store.workers()
        spec = pod_spec_of(self.job, workers)
        required = NodeRequirements(spec, self.job.spec.elastic.leave_on_cordon, self._gpu_types)
        seen = self._nodes.look(required, self._jobs(), now)
        pods = self._with_words(self._pods(seen.held))
        epochs = tuple(record for record, _ in self._store.records())
        # A job with pods is not held up by an answer that matters to further ones alone.
        has_pods = any(record.outcome in ("open", "live") for record in epochs)
        self._deleted &= {body["metadata"]["uid"] for body in self._own("Pod")}
        return Observed(
            nodes=seen.nodes,
            pods=pods,
            epochs=epochs,
            unusable=seen.unusable,
            divided=seen.divided,
            refusals=self._refused.wanted(pods, epochs),
            referenced=await self._referenced.read(self.job.spec.plan_ref, now),
            headroom=self._rules.headroom(spec, now, per_gpu_of(spec, workers)),
            template_problem=await self._rules.template_problem(self._trials, now, not has_pods),
            priority=self._priority(),
            taken=tuple(filter(None, (self._store.taken,))),
            unrecorded=self._store.unrecorded,
            flaps=seen.flaps,
            clock_offset_s=self._offset_s,
        )

    def node_changed(self, name: str) -> None:
        """See `Follower`: a node with pods of the job concerns it, others only if it may grow."""
        if not self._nodes.differs(name, time.monotonic()):
            return
        most = self.job.spec.elastic.max_gpus
        if self._nodes.holds(name):
            self._trigger.set()
        elif most is None or self._nodes.gpus < most:
            self._trigger.set_soon(self._moment_s, GROWTH_PAUSE_S)

    async def apply(self, action: ClusterAction) -> None:
        """Do one thing; see `Cluster`.

        Raises:
            ClusterConflict: somebody else was first.
            ClusterUnavailable: the API server did not do it, and may do it later.
        """
        try:
            match action:
                case CreatePod() | DeletePod():
                    async with self._pod_turns:
                        await self._apply_to_pod(action)
                case AdoptPlan():
                    await self._store.adopt(action)
                case SealEpoch() | CloseEpoch():
                    await self._store.write(action)
                case PruneEpoch():
                    await self._store.prune(action)
        except ApiRefused as error:
            raise ClusterUnavailable(str(error), again_s=error.again_s or None) from None

    async def close(self) -> None:
        """Ask for nothing more."""
        await self._pod_events.close()
        await self._rules.close()

    async def _apply_to_pod(self, action: CreatePod | DeletePod) -> None:
        match action:
            case CreatePod():
                await self._create(action)
            case DeletePod():
                await self._delete(action)

    def _pods(self, held: HeldNodes) -> tuple[ObservedPod, ...]:
        now_wall_s, found = self._now_wall_s, []
        by_node: dict[str, list[Body]] = {}
        for body in self._own("Pod"):
            node = self._cache.nodes.get(_node_of(body))
            ready = node is not None and is_ready(node)
            pod = self._malformed.read(
                body, partial(view_pod, body, ready, now_wall_s, self._offset_s)
            )
            if pod is not None:
                by_node.setdefault(pod.node, []).append(body)
                found.append(pod)
        unhealthy: dict[str, str] = {}
        for name, rows in by_node.items():
            if name in self._cache.nodes:
                unhealthy |= unhealthy_pods(self._cache.nodes[name], held.get(name, (0, 0)), rows)
        return tuple(
            replace(pod, notice=unhealthy[pod.name]) if unhealthy.get(pod.name) else pod
            for pod in found
        )

    def _with_words(self, pods: tuple[ObservedPod, ...]) -> tuple[ObservedPod, ...]:
        """The pods, with what the kubelet says of those that wait without a word."""
        bodies = {b["metadata"]["name"]: b for b in self._own("Pod")}
        silent = {
            pod.name: bodies[pod.name]
            for pod in pods
            if pod.phase == "pending" and not pod.problem and waits_silently(bodies[pod.name])
        }
        known = self._pod_events.known(silent.values(), self._now_wall_s)
        words = {name: known.get(body["metadata"]["uid"]) for name, body in silent.items()}
        return tuple(
            replace(pod, cause=said[0], problem=said[1]) if (said := words.get(pod.name)) else pod
            for pod in pods
        )

    def _trials(self) -> Iterator[Body]:
        workers, largest = self._store.workers(), self._cache.inventory.largest_gpus
        return trials(self.job, workers, self._now_wall_s, largest)

    def _priority(self) -> int:
        """Of the job's pods, as admission has resolved their PriorityClass."""
        found = [b["spec"].get("priority") for b in self._own("Pod")]
        return next((int(p) for p in found if p is not None), self._rules.priority)

    async def _create(self, action: CreatePod) -> None:
        try:
            made = await self._made(action)
        except (ApiRefused, NoHostPort) as error:
            if isinstance(error, ApiRefused) and error.status == 0:
                raise
            LOG.warning("pod %s is refused: %s", action.name, error)
            now, passes = time.monotonic(), isinstance(error, ApiRefused) and error.passes
            self._refused.note(action, str(error), now, passes)
            await self._rules.learn(str(error), now)
            self._trigger.set()
        else:
            self._refused.made(action.name)
            self._cache.put("Pod", made)

    async def _made(self, action: CreatePod) -> Body:
        """The pod, made now or before; it gets a further name where somebody else's has its own."""
        workers, taken = self._store.workers(), self._cache.host_ports(action.node)
        further = further_pod_name(action.name, self.job.metadata.uid)
        for name in (action.name, further):
            named = replace(action, name=name)
            body = pod_body(self.job, named, workers, self._now_wall_s, taken)
            try:
                return await self._whole(body, await self._api.create(self._path("pods"), body))
            except ApiRefused as error:
                if error.status != 409:
                    raise
                held = await self._held(name)
                owner = owner_of(self.job, held) if held is not None else "earlier job"
                if held is not None and owner == "this job":
                    return await self._whole(body, held)
                if owner == "earlier job" or name == further:  # the former goes by itself
                    raise
        raise AssertionError("the last name is made or refused")

    async def _whole(self, asked: Body, made: Body) -> Body:
        """The pod that was made; one that could not be found again is deleted.

        Raises:
            ApiRefused: admission took something off it.
        """
        what, metadata = taken_off(asked, made), made["metadata"]
        if what:
            path = self._path("pods", metadata["name"])
            await self._api.delete(path, metadata["uid"], DELETE_GRACE_S)
            raise ApiRefused(422, taken_off_words(metadata["name"], what))
        return made

    async def _held(self, name: str) -> Body | None:
        """The pod of that name; None: it is gone.

        Raises:
            ClusterUnavailable: the API server cannot tell just now.
        """
        try:
            held = await self._api.get(self._path("pods", name))
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise ClusterUnavailable(str(error)) from None
        self._cache.put("Pod", held)
        return held

    async def _delete(self, action: DeletePod) -> None:
        for body in self._own("Pod"):
            uid = body["metadata"]["uid"]
            if body["metadata"]["name"] == action.name and uid not in self._deleted:
                LOG.info("delete pod %s: %s", action.name, action.why)
                path = self._path("pods", action.name)
                await self._api.delete(path, uid, DELETE_GRACE_S)
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

    def _own(self, kind: str) -> tuple[Body, ...]:
        """The job's objects of a kind, as the cache holds them."""
        return self._cache.own(kind, self.job.metadata.namespace, self.job.metadata.uid)

    @property
    def _now_wall_s(self) -> float:
        return time.monotonic() + self._offset_s

    def _path(self, plural: str, *name: str) -> str:
        return object_path("/api/v1/namespaces", self.job.metadata.namespace, plural, *name)


def _node_of(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(NODE_ANNOTATION, ""))
