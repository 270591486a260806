"""Merging pod templates: what a user or an administrator adds to the worker pods.

Invariant: a later template adds to an earlier one; named things (containers, volumes, variables)
are merged by name, lists without names are replaced, and what is in `_APPENDED` only grows.
Source: Kubernetes' strategic merge patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
_APPENDED = ("tolerations", "args", "envFrom")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `over` adds and replaces; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        held = merged.get(key)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(held, value)
        elif isinstance(held, list) and isinstance(value, list):
            merged[key] = _merge_lists(key, held, value)
        else:
            merged[key] = value
    return merged


def _merge_lists(key: str, base: list[Any], over: list[Any]) -> list[Any]:
    if key in _APPENDED:
        return [*base, *over]
    name = _KEYS.get(key)
    if name is None:
        return over
    rows = {row.get(name): row for row in base}
    for row in over:
        held = rows.get(row.get(name))
        rows[row.get(name)] = merge(held, row) if held is not None else row
    return list(rows.values())
