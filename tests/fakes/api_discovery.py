"""Resources that the fake API server tells of, as the discovery of a real one does."""

from __future__ import annotations

from typing import Any

RESOURCES = {
    "v1": ("pods Pod", "nodes Node", "configmaps ConfigMap", "namespaces Namespace"),
    "heddle.dev/v1alpha1": ("heddlejobs HeddleJob",),
    "apiextensions.k8s.io/v1": ("customresourcedefinitions CustomResourceDefinition",),
}


def discovery(path: str) -> dict[str, Any] | None:
    """What Kopf asks before it watches."""
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        pairs = [known.split("/") for known in RESOURCES if "/" in known]
        versions = {group: {"version": v, "groupVersion": f"{group}/{v}"} for group, v in pairs}
        return {
            "groups": [
                {"name": group, "versions": [version], "preferredVersion": version}
                for group, version in versions.items()
            ]
        }
    for version, rows in RESOURCES.items():
        if path in (f"/api/{version}", f"/apis/{version}"):
            pairs = [row.split() for row in rows]
            return {
                "groupVersion": version,
                "resources": [
                    {
                        "name": plural, "singularName": kind.lower(), "kind": kind,
                        "namespaced": kind in ("Pod", "ConfigMap", "HeddleJob"),
                        "shortNames": [], "categories": [],
                        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
                    }
                    for plural, kind in pairs
                ],
            }  # fmt: skip
    return None
