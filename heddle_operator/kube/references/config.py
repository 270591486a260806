"""Reads the config.json that a HeddleJob names by `spec.model.configRef`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.model import config_in, config_reference
from heddle_operator.kube.client import KubeApi
from heddle_operator.kube.paths import object_path


async def referenced_config(api: KubeApi, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration of a job's model; None if it names no ConfigMap.

    Raises:
        ApiRefused: the ConfigMap cannot be read; with status 404 if there is none.
        InvalidJob: it holds no config.json, or a model by entry point names none, or the name can
            be none of a ConfigMap.
    """
    name = config_reference(body)
    if name is None:
        spec = body.get("spec") or {}
        if (spec.get("model") or {}).get("entryPoint"):  # no code of a user runs in the operator
            raise InvalidJob(
                "spec.model.entryPoint needs a configRef on a cluster; put the output "
                "of `heddle model` into a ConfigMap and name it there",
                field="spec.model.configRef",
                code="Missing",
            )
        return None
    namespace = body["metadata"].get("namespace", "default")
    held = await api.get(object_path("/api/v1/namespaces", namespace, "configmaps", name))
    return config_in(name, held.get("data") or {})
