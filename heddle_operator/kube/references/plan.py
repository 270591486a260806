"""Reads the plan that a HeddleJob names by `spec.planRef`, at most once in a few seconds."""

from __future__ import annotations

from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.kube.paths import object_path
from heddle_operator.state.plan_reply import ReferencedPlan, read_plan_reference

REFERENCE_S = 4.0  # the ConfigMap is read again after so long


class PlanReference:
    """The plan that one job names.

    Args:
        api: of the cluster.
        namespace: of the job.
    """

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._known: tuple[float, ReferencedPlan | None] = (0.0, None)

    async def read(self, name: str | None, now: float) -> ReferencedPlan | None:
        """Content of the ConfigMap; None if the job names none."""
        if name is None:
            return None
        read_s, found = self._known
        if found is None or found.name != name or now - read_s > REFERENCE_S:
            path = object_path("/api/v1/namespaces", self._namespace, "configmaps", name)
            try:
                body = await self._api.get(path)
            except ApiRefused as error:
                found = ReferencedPlan(name, None, str(error))
            else:
                found = read_plan_reference(name, body.get("data") or {})
            self._known = (now, found)
        return found
