"""Objects of a job beside pods and epochs: token, disruption budget, status, events.

Invariant: the budget follows what the API server holds: a pod is counted until it terminates, so a
pod is always deleted before the budget is lowered.
Source: research on drains: the other order lets another pod be evicted.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import EVICTABLE_LABEL
from heddle_operator.inventory.requests import owner_uid
from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.resources.disruption_budget import budget_body, budget_name
from heddle_operator.resources.event import event_body
from heddle_operator.resources.secret import token_body, token_name
from heddle_operator.state.actions import RecordEvent

LOG = logging.getLogger(__name__)
JOBS = "/apis/heddle.dev/v1alpha1"


class JobObjects:
    """Reads and writes them for one job."""

    def __init__(self, job: HeddleJob, api: KubeApi) -> None:
        self._job = job
        self._api = api
        self._core = f"/api/v1/namespaces/{job.metadata.namespace}"
        self._budgets = f"/apis/policy/v1/namespaces/{job.metadata.namespace}/poddisruptionbudgets"
        self._budgeted: int | None = None

    async def token(self) -> str:
        """The job's bearer token, made once.

        Raises:
            ApiRefused: it can be neither read nor made.
        """
        path = f"{self._core}/secrets"
        name = token_name(self._job)
        try:
            held = await self._api.get(f"{path}/{name}")
            if owner_uid(held["metadata"]) != self._job.metadata.uid:  # of an earlier job
                await self._api.delete(f"{path}/{name}", uid=held["metadata"]["uid"])
                held = {}
        except ApiRefused as error:
            if error.status != 404:
                raise
            held = {}
        if not held:
            try:
                held = await self._api.create(
                    path, token_body(self._job, secrets.token_urlsafe(32))
                )
            except ApiRefused as error:
                if error.status != 409:
                    raise
                held = await self._api.get(f"{path}/{name}")  # another operator was first
        return base64.b64decode(held["data"]["token"]).decode()

    async def write_budget(self, pods: Collection[Mapping[str, Any]]) -> None:
        """Let the disruption budget cover exactly the live pods.

        Args:
            pods: Pod objects of the job, as the API server holds them.

        Raises:
            ApiRefused: it cannot be written.
        """
        live = sum(is_in_budget(pod) for pod in pods)
        if live == self._budgeted or (live == 0 and self._budgeted is None):
            return
        body = budget_body(self._job, live)
        try:
            await self._api.patch(f"{self._budgets}/{budget_name(self._job)}", body)
        except ApiRefused as error:
            if error.status != 404:
                raise
            await self._api.create(self._budgets, body)
        self._budgeted = live

    async def delete_budget(self) -> None:
        """Remove the disruption budget: the job has ended.

        Raises:
            ApiRefused: it cannot be deleted.
        """
        await self._api.delete(f"{self._budgets}/{budget_name(self._job)}")
        self._budgeted = None

    async def set_evictable(self, pod: str, is_evictable: bool) -> None:
        """Take a pod out of the disruption budget, or back into it.

        Raises:
            ApiRefused: it cannot be written.
        """
        labels = {EVICTABLE_LABEL: "true" if is_evictable else None}
        await self._api.patch(f"{self._core}/pods/{pod}", {"metadata": {"labels": labels}})

    async def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status of the job; one that is gone is fine.

        Raises:
            ApiRefused: it cannot be written.
        """
        path = f"{JOBS}/namespaces/{self._job.metadata.namespace}/heddlejobs/{self._job.name}"
        try:
            await self._api.patch(f"{path}/status", {"status": dict(status)})
        except ApiRefused as error:
            if error.status != 404:
                raise

    async def record_event(self, event: RecordEvent) -> None:
        """Post an Event; one that exists, or that the API server refuses, is skipped."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self._job.metadata.namespace}/events"
        try:
            await self._api.create(path, event_body(self._job, event, now_micro()))
        except ApiRefused as error:
            if error.status != 409:
                LOG.warning("job=%s event not posted: %s", self._job.name, error)

    async def remove_pods(self, pods: Collection[Mapping[str, Any]], grace_s: int) -> None:
        """Delete pods of a job that is gone, so that they do not train on through their grace.

        Raises:
            ApiRefused: one cannot be deleted.
        """
        for pod in pods:
            metadata = pod["metadata"]
            await self._api.delete(
                f"{self._core}/pods/{metadata['name']}", grace_s, metadata["uid"]
            )


def is_in_budget(pod: Mapping[str, Any]) -> bool:
    """Whether the disruption budget counts the pod."""
    set_evictable = EVICTABLE_LABEL in (pod["metadata"].get("labels") or {})
    return is_live(pod) and not set_evictable


def is_live(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has neither ended nor got its notice."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not ended and not pod["metadata"].get("deletionTimestamp")


def now_micro() -> str:
    """The time as a MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now_text() -> str:
    """The time as Kubernetes writes it in conditions."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
