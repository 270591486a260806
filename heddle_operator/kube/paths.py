"""Paths of the API server's objects, made of names that others chose.

Invariant: a name stays one segment of a path, whatever it holds: it can name no other object, no
other namespace and no query.
Source: Kubernetes' IsValidPathSegmentName (no "/", no "%", neither "." nor "..").
"""

from __future__ import annotations

import re
from urllib.parse import quote

_SAFE_PATH = re.compile(r"(/[A-Za-z0-9._~:%-]+)+")


def object_path(*segments: str) -> str:
    """The path below a collection, or a collection's own: `object_path("/api/v1/nodes", name)`.

    Args:
        segments: the first may be a path already; each other one is one segment, escaped.

    Raises:
        ValueError: a segment can name no object.
    """
    first, *names = segments
    for name in names:
        if not name or name in (".", "..") or "/" in name or "%" in name:
            raise ValueError(f"{name!r} is no name of an object")
    return "/".join([first, *(quote(name, safe="") for name in names)])


def is_plain(path: str) -> bool:
    """Whether a path names what it seems to: nothing in it is a query or leads upwards."""
    is_safe = _SAFE_PATH.fullmatch(path) is not None and "%2e" not in path.lower()
    return is_safe and not any(part in (".", "..") for part in path.split("/"))
