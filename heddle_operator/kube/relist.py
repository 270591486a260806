"""Whole lists into the cache: what watches missed, for example deletions while they were down.

Kopf lists anew after a watch expired, but says nothing of objects that went meanwhile.
Source: Kubernetes' informers (the periodic relist of client-go's reflector).
"""

from __future__ import annotations

from heddle_operator.apis.labels import JOB_LABEL
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import Body, KubeApi

CHUNK = "500"


async def relist(api: KubeApi, cache: ObjectCache, namespaces: tuple[str, ...] = ()) -> None:
    """List nodes, pods and epoch records, and forget what is not there any more.

    Args:
        api: of the cluster.
        cache: to feed.
        namespaces: to look at; none given: all.

    Raises:
        ApiRefused: a list was refused; what came before is taken over.
    """
    nodes = await _listed(api, "/api/v1/nodes")
    for node in nodes:
        cache.put_node(node)
    for name in set(cache.nodes) - {node["metadata"]["name"] for node in nodes}:
        cache.drop_node(name)
    for kind, plural, query in (
        ("Pod", "pods", {}),
        ("ConfigMap", "configmaps", {"labelSelector": JOB_LABEL}),
    ):
        bodies = []
        for path in [f"/api/v1/namespaces/{n}/{plural}" for n in namespaces] or [
            f"/api/v1/{plural}"
        ]:
            bodies += await _listed(api, path, **query)
        for body in bodies:
            cache.put(kind, body)
        cache.keep_only(kind, (body["metadata"]["uid"] for body in bodies))


async def _listed(api: KubeApi, path: str, **query: str) -> list[Body]:
    rows: list[Body] = []
    more = ""
    while True:
        page = await api.get(path, limit=CHUNK, **query, **({"continue": more} if more else {}))
        rows += page.get("items") or []
        more = page.get("metadata", {}).get("continue", "")
        if not more:
            return rows
