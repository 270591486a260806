"""Objects of a job beside pods and epochs: token, disruption budgets, status, events.

Invariant: the budget follows what the API server holds: a pod is counted until it terminates, so a
pod is always deleted before the budget is lowered.  What the job does not own stays as it is, and
every write names the uid of what was seen.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from heddle_operator.apis.errors import NameTaken
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import EVICTABLE_LABEL, ONE_AT_A_TIME
from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.kube.earlier_objects import EarlierObjects
from heddle_operator.kube.paths import object_path
from heddle_operator.resources.disruption_budget import (
    Mark,
    budget_body,
    budget_name,
    least_available,
    mark_of,
)
from heddle_operator.resources.event import event_body
from heddle_operator.resources.metadata import check_owned
from heddle_operator.resources.secret import token_body, token_name
from heddle_operator.rules.drain import Drain
from heddle_operator.state.actions import RecordEvent
from planner.pauses import doubled_s

LOG = logging.getLogger(__name__)
JOBS = "/apis/heddle.dev/v1alpha1"
# A cluster without API server for a minute loses no Event.  Source: client-go's recorder, 12 tries.
EVENT_TRIES, EVENT_RETRY_S = 12, (0.5, 10.0)
KNOWN_S = 60.0  # what was written is looked at again after so long: anybody may delete it


class JobObjects:
    """Reads and writes them for one job.

    Args:
        job: that owns them.
        api: of the cluster.
        reporter: the identity of the operator, for Events.

    Attributes:
        refused: why the API server takes no disruption budget, in a sentence; "" if it does, or
            may do so later.
    """

    def __init__(self, job: HeddleJob, api: KubeApi, reporter: str = "heddle-operator") -> None:
        self._job = job
        self._api = api
        self._reporter = reporter
        namespace = job.metadata.namespace
        self._core = object_path("/api/v1/namespaces", namespace)
        self._budgets = object_path("/apis/policy/v1/namespaces", namespace, "poddisruptionbudgets")
        self.refused = ""
        self._budgeted: dict[Mark, tuple[int, float]] = {}  # what it keeps, until when that holds
        self._taken: dict[Mark, str] = {}
        self._earlier = EarlierObjects()
        self._version = ""  # of the job, as this has seen or written it
        self._token: tuple[str, float] | None = None  # and until when it is known to be there

    @property
    def namespace(self) -> str:
        """Of the job, and of all that it owns."""
        return self._job.metadata.namespace

    @property
    def taken(self) -> str:
        """Why there is no disruption budget, in a sentence; "" if there is, or need be none."""
        return next(iter(self._taken.values()), "")

    async def token(self) -> str:
        """The job's bearer token, made once.

        Raises:
            ApiRefused: it can be neither read nor made.
            EarlierJobRemains: the Secret of an earlier job has its name.
            NameTaken: somebody else's Secret has it.
        """
        path, name = object_path(self._core, "secrets"), token_name(self._job)
        held = await self._found(object_path(path, name), "Secret")
        if held is None:
            held = await self._api.create(path, token_body(self._job, secrets.token_urlsafe(32)))
        token = (held.get("data") or {}).get("token")
        if not token:
            raise NameTaken(
                f"Secret {name} holds no `token`; delete it, and the operator makes it anew"
            )
        found = base64.b64decode(token).decode()
        self._token = found, time.monotonic() + KNOWN_S
        return found

    async def keep_token(self) -> None:
        """Make the Secret anew, with the token that the pods have, where somebody deleted it.

        Raises:
            ApiRefused: it can be neither read nor made.
        """
        if self._token is None or time.monotonic() < self._token[1]:
            return
        path, token = object_path(self._core, "secrets"), self._token[0]
        with contextlib.suppress(NameTaken):  # the next run of the job says so
            if await self._found(object_path(path, token_name(self._job)), "Secret") is None:
                LOG.warning("its Secret was deleted, and is made anew")
                await self._api.create(path, token_body(self._job, token))
        self._token = token, time.monotonic() + KNOWN_S

    async def _found(self, path: str, kind: str) -> Mapping[str, Any] | None:
        """The job's object at a path; None if there is none.

        Raises:
            ApiRefused: it cannot be read.
            NameTaken: it is somebody else's.
        """
        try:
            held = await self._api.get(path)
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise
        check_owned(self._job, held, kind)
        return held

    async def write_budgets(self, pods: Collection[Mapping[str, Any]], drain: Drain) -> None:
        """First what the budgets keep, then whom they cover: nothing is allowed in between.

        Args:
            pods: Pod objects of the job, as the API server holds them.
            drain: what evictions may do now.

        Raises:
            ApiRefused: something cannot be written; what is written protects no less.  `refused`
                says so of a budget, if the answer is final.
        """
        self.refused = ""
        live = {pod["metadata"]["name"]: pod for pod in pods if is_live(pod)}
        marks = {name: mark_on(pod) for name, pod in live.items()}
        protected, yielding = least_available(marks, drain)
        await self.write_budget(protected)
        yields = drain.yielded or ONE_AT_A_TIME in marks.values()
        if yields and not await self.write_budget(yielding, ONE_AT_A_TIME):
            drain = replace(drain, yielded=frozenset())  # without it nothing would protect them
        for name, mark in marks.items():
            if mark != mark_of(name, drain):
                await self.mark(live[name], mark_of(name, drain))

    async def write_budget(self, least: int, covers: Mark = None) -> bool:
        """Let a disruption budget keep so many pods; False if somebody else has its name.

        `taken` then says so.  One that would keep none is not made.

        Raises:
            ApiRefused: it cannot be written.
        """
        known, until_s = self._budgeted.get(covers, (None, 0.0))
        if least == known and time.monotonic() < until_s:
            return True
        try:
            await self._put_budget(least, covers)
        except NameTaken as error:
            if self._earlier.is_told(error):
                self._taken[covers] = str(error)
            return False
        except ApiRefused as error:
            if error.is_final:
                self.refused = f"the cluster refuses the job's PodDisruptionBudget: {error}"
            raise
        self._budgeted[covers] = least, time.monotonic() + KNOWN_S
        self._taken.pop(covers, None)
        return True

    async def _put_budget(self, least: int, covers: Mark) -> None:
        path = object_path(self._budgets, budget_name(self._job, covers))
        held = await self._found(path, "PodDisruptionBudget")
        body = budget_body(self._job, least, covers)
        if held is None and least > 0:
            await self._api.create(self._budgets, body)
        elif held is not None:
            seen = {key: held["metadata"][key] for key in ("uid", "resourceVersion")}
            await self._api.patch(path, {**body, "metadata": {**body["metadata"], **seen}})

    async def delete_budgets(self) -> None:
        """Remove the disruption budgets: the job has ended.

        Raises:
            ApiRefused: one cannot be deleted.
        """
        for covers in (None, ONE_AT_A_TIME):
            path = object_path(self._budgets, budget_name(self._job, covers))
            with contextlib.suppress(NameTaken):
                held = await self._found(path, "PodDisruptionBudget")
                if held is not None:
                    await self._api.delete(path, held["metadata"]["uid"])
        self._budgeted.clear()

    async def mark(self, pod: Mapping[str, Any], mark: Mark) -> None:
        """Say of a pod of the job whether it may be evicted: None protects it.

        Raises:
            ApiRefused: it cannot be written.
        """
        seen = pod["metadata"]
        change = {"metadata": {"uid": seen["uid"], "labels": {EVICTABLE_LABEL: mark}}}
        await self._api.patch(object_path(self._core, "pods", seen["name"]), change)

    async def delete_job(self) -> None:
        """Delete the job itself, unless another one has its name by now.

        Raises:
            ApiRefused: it cannot be deleted.
        """
        metadata = self._job.metadata
        path = object_path(f"{JOBS}/namespaces", metadata.namespace, "heddlejobs", metadata.name)
        await self._api.delete(path, uid=metadata.uid)

    async def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status of the job; one that is gone, or has a successor of its name, is fine.

        Raises:
            ApiRefused: it cannot be written.
        """
        try:
            for is_last in (False, True):
                try:
                    await self._patch_status(status)
                    return
                except ApiRefused as error:
                    if error.status != 409 or is_last:
                        raise
                    self._version = ""  # the job has changed, or is another one by now
        except ApiRefused as error:
            if error.status != 404:
                raise

    async def _patch_status(self, status: Mapping[str, Any]) -> None:
        """Write it to the version that is known to be this job's: a status ignores a uid."""
        metadata = self._job.metadata
        path = object_path(f"{JOBS}/namespaces", metadata.namespace, "heddlejobs", metadata.name)
        if not self._version:
            held = await self._api.get(path)
            if held["metadata"]["uid"] != metadata.uid:
                return
            self._version = held["metadata"]["resourceVersion"]
        seen = {"resourceVersion": self._version}
        made = await self._api.patch(f"{path}/status", {"metadata": seen, "status": dict(status)})
        self._version = made["metadata"]["resourceVersion"]

    async def record_event(self, event: RecordEvent) -> None:
        """Post an Event; one that exists, or that the API server refuses, is skipped.

        Where the API server has no answer for it now, it is tried again a few times.
        """
        namespace = self._job.metadata.namespace
        path = object_path("/apis/events.k8s.io/v1/namespaces", namespace, "events")
        body = event_body(self._job, event, now_micro(), self._reporter)
        for times in range(1, EVENT_TRIES + 1):
            try:
                await self._api.create(path, body)
            except ApiRefused as error:
                if error.status == 409:
                    return
                if error.passes and times < EVENT_TRIES:
                    await asyncio.sleep(doubled_s(EVENT_RETRY_S[0], times, EVENT_RETRY_S[1]))
                    continue
                LOG.warning("event not posted: %s", error)
            return

    async def remove_pods(self, pods: Collection[Mapping[str, Any]], grace_s: int) -> None:
        """Delete pods of a job that is gone, so that they do not train on through their grace.

        Raises:
            ApiRefused: one cannot be deleted.
        """
        for pod in pods:
            metadata = pod["metadata"]
            path = object_path(self._core, "pods", metadata["name"])
            await self._api.delete(path, metadata["uid"], grace_s)


def mark_on(pod: Mapping[str, Any]) -> Mark:
    """The mark that a pod has."""
    mark = (pod["metadata"].get("labels") or {}).get(EVICTABLE_LABEL)
    return None if mark is None else str(mark)


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
