"""Which collections an operator reflects, and into what: nodes, pods, epoch records, quotas, jobs.

Pods of others are taken only while they may hold GPUs, and ConfigMaps only of jobs; the API server
selects them, so nothing else is sent.
Source: Kubernetes' informers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from heddle_operator.apis.labels import JOB_LABEL
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import KubeApi
from heddle_operator.kube.paths import object_path
from heddle_operator.kube.reflector import Collection, Reflector

_HAS_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
Body = Mapping[str, Any]


def reflectors(
    api: KubeApi, cache: ObjectCache, namespaces: tuple[str, ...] = (), all_pods: bool = False
) -> tuple[Reflector, ...]:
    """One for each collection that fills the cache.

    Args:
        api: of the cluster.
        cache: to fill.
        namespaces: to look at; none given: all.
        all_pods: pods of all namespaces are looked at all the same, for the GPUs that they hold.
    """
    found = [Reflector(api, Collection("/api/v1/nodes"), _Nodes(cache))]
    ours = {"labelSelector": JOB_LABEL}
    others = {"labelSelector": f"!{JOB_LABEL}", "fieldSelector": _HAS_NOT_ENDED}
    scopes = namespaces or ("",)
    for scope in scopes:
        path = _path("/api/v1", scope, "configmaps")
        maps = Collection(path, ours, scope, is_large=True)
        found.append(Reflector(api, maps, _Owned(cache, "ConfigMap", scope)))
        quotas = Collection(_path("/api/v1", scope, "resourcequotas"), {}, scope, is_optional=True)
        found.append(Reflector(api, quotas, _Quotas(cache, scope)))
    for scope in ("",) if all_pods else scopes:
        path = _path("/api/v1", scope, "pods")
        found.append(Reflector(api, Collection(path, ours, scope), _Owned(cache, "Pod", scope)))
        found.append(Reflector(api, Collection(path, others, scope), _Allocations(cache)))
    return tuple(found)


class Jobs(Protocol):
    """News of HeddleJobs beside Kopf's."""

    def seen(self, body: Body) -> None:
        """A job is there, or has changed."""

    def drop(self, body: Body) -> None:
        """A job was deleted."""

    def keep_only(self, namespace: str, uids: frozenset[str], version: int) -> None:
        """Forget the jobs of a namespace ("": of all) that a list of that version lacks."""


def job_reflectors(
    api: KubeApi, jobs: Jobs, namespaces: tuple[str, ...] = ()
) -> tuple[Reflector, ...]:
    """Reflections of present HeddleJobs and of gone ones, also when nobody watched.

    Kopf tells what is in them; that it does is seen by what it should have told.
    """
    group = "/apis/heddle.dev/v1alpha1"
    return tuple(
        Reflector(api, Collection(_path(group, scope, "heddlejobs"), {}, scope), _Gone(jobs, scope))
        for scope in namespaces or ("",)
    )


def _path(group: str, namespace: str, plural: str) -> str:
    return (
        object_path(f"{group}/namespaces", namespace, plural) if namespace else f"{group}/{plural}"
    )


def _version_of(body: Body) -> int:
    """Of an object that was deleted: that of its deletion."""
    return int(body["metadata"].get("resourceVersion") or sys.maxsize)


class _Nodes:
    """Nodes, by name as pods name them."""

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache

    def put(self, body: Body) -> None:
        self._cache.put_node(body)

    def drop(self, body: Body) -> None:
        self._cache.drop_node(body["metadata"]["name"])

    def keep(self, uids: frozenset[str], _: int, /) -> None:
        for name, node in tuple(self._cache.nodes.items()):
            if node["metadata"].get("uid") not in uids:
                self._cache.drop_node(name)


class _Owned:
    """Pods or ConfigMaps of jobs; the cache holds some before a watch tells of them."""

    def __init__(self, cache: ObjectCache, kind: str, namespace: str) -> None:
        self._cache = cache
        self._kind = kind
        self._namespace = namespace

    def put(self, body: Body) -> None:
        self._cache.put(self._kind, body)

    def drop(self, body: Body) -> None:
        self._cache.drop(body["metadata"]["uid"], _version_of(body))

    def keep(self, uids: frozenset[str], version: int, /) -> None:
        self._cache.keep_only(self._kind, self._namespace, uids, version)


class _Quotas:
    """ResourceQuotas; where they may not be read, a refused pod tells of one."""

    def __init__(self, cache: ObjectCache, namespace: str) -> None:
        self._cache = cache
        self._namespace = namespace

    def put(self, body: Body) -> None:
        self._cache.put_quota(body)

    def drop(self, body: Body) -> None:
        self._cache.drop_quota(body["metadata"]["uid"])

    def keep(self, uids: frozenset[str], version: int, /) -> None:
        self._cache.keep_quotas(self._namespace, uids, version)


class _Allocations:
    """Pods of others, as far as they hold GPUs."""

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache
        self._known: set[str] = set()

    def put(self, body: Body) -> None:
        self._known.add(body["metadata"]["uid"])
        self._cache.put("Pod", body)

    def drop(self, body: Body) -> None:
        self._known.discard(body["metadata"]["uid"])
        self._cache.release(body["metadata"]["uid"])

    def keep(self, uids: frozenset[str], _: int, /) -> None:
        for uid in self._known - uids:
            self._cache.release(uid)
        self._known &= uids


class _Gone:
    """HeddleJobs: that one is gone is news; that one is there shows whether Kopf tells of it."""

    def __init__(self, jobs: Jobs, namespace: str) -> None:
        self._jobs = jobs
        self._namespace = namespace

    def put(self, body: Body) -> None:
        self._jobs.seen(body)

    def drop(self, body: Body) -> None:
        self._jobs.drop(body)

    def keep(self, uids: frozenset[str], version: int, /) -> None:
        self._jobs.keep_only(self._namespace, uids, version)
