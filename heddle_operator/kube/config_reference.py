"""Reads the config.json that a HeddleJob names by `spec.model.configRef`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heddle_operator.apis.model import config_in, config_reference
from heddle_operator.kube.client import KubeApi


async def referenced_config(api: KubeApi, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration of a job's model; None if it names no ConfigMap.

    Raises:
        ApiRefused: the ConfigMap cannot be read; with status 404 if there is none.
        InvalidJob: it holds no config.json.
    """
    name = config_reference(body)
    if name is None:
        return None
    namespace = body["metadata"].get("namespace", "default")
    held = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    return config_in(name, held.get("data") or {})
