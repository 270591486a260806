"""One operator decides at a time: a Lease that is held before any job is followed.

Time is measured on this machine only: a lease whose record has not changed for its duration, as
seen from here, is free, whatever the clocks of other machines say.
Invariant: an operator that could not renew in time sends nothing more before another may start:
every request ends within `left_s`, which counts from before the renewal was sent.
A renewal is one request, and due so long after the last one was sent: answers may take a third of
the duration.
Source: client-go's leader election.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from heddle_operator.kube.client import ApiRefused, KubeApi

LOG = logging.getLogger(__name__)
Body = dict[str, Any]
RENEWALS = 3  # in each duration
RETRIES = 15  # in each duration, of a renewal that was refused
GIVE_UP = 2 / 3  # of the duration without a renewal: stop; the rest is for clocks and the network


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Candidate and its lease.

    Attributes:
        identity: unique among operators.
        duration_s: a dead operator is followed after so long.
    """

    namespace: str
    name: str
    identity: str
    duration_s: int = 15


class LeaderElector:
    """A candidate for a Lease of coordination.k8s.io, for one term after the other.

    Attributes:
        problem: why it is not known who leads, in words; "" while it is.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: LeaseSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        self._api = api.fenced(self._patience_s)
        self._settings = settings
        self._clock = clock
        self._renewed_s = -math.inf
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._seen: tuple[str, float] = ("", clock())
        self._held: Body | None = None

    def left_s(self) -> float:
        """Seconds in which this operator may still write; none while it does not hold the Lease."""
        return self._renewed_s + GIVE_UP * self._settings.duration_s - self._clock()

    def _patience_s(self) -> float:
        """Seconds that a request about the Lease itself may take."""
        left_s = self.left_s()
        return left_s if self._renewed_s > -math.inf else float(self._settings.duration_s)

    async def acquire(self) -> None:
        """Return when this operator holds the Lease."""
        waits_for, said = "", ""
        while True:
            try:
                if await self._try():
                    self.problem = ""
                    LOG.info("lease %s is held by %s", self._settings.name, self._settings.identity)
                    return
                self.problem = ""
            except ApiRefused as error:
                self.problem = f"the Lease {self._settings.name} cannot be had: {error}"
                if self.problem != said:
                    LOG.warning("%s", self.problem)
            said = self.problem
            holder = self._holder()
            if holder and holder != waits_for:
                LOG.info("lease %s is held by %s; waiting", self._settings.name, holder)
                waits_for = holder
            await asyncio.sleep(self._settings.duration_s / RENEWALS / 2)

    async def renew(self) -> None:
        """Renew until that fails for too long; then return: the term is over."""
        duration_s = self._settings.duration_s
        due_s = self._renewed_s + duration_s / RENEWALS
        while self.left_s() > 0:
            await asyncio.sleep(max(0.0, min(due_s - self._clock(), self.left_s())))
            try:
                if not await self._keep():
                    self._renewed_s = -math.inf
                    LOG.error("lease %s was taken by %s", self._settings.name, self._holder())
                    return
                due_s = self._renewed_s + duration_s / RENEWALS
            except ApiRefused as error:
                due_s = self._clock() + duration_s / RETRIES
                LOG.warning("lease %s is not renewed: %s", self._settings.name, error)
        self._renewed_s = -math.inf
        LOG.error("lease %s could not be renewed in time", self._settings.name)

    async def release(self) -> None:
        """Give it up, so that the next operator need not wait; nothing may be written after it."""
        if self._held is None or self._holder() != self._settings.identity:
            return
        spec = {**self._held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._api.replace(self._object, {**self._held, "spec": spec})
        except ApiRefused as error:
            LOG.info("lease %s is not released: %s", self._settings.name, error)
        self._renewed_s = -math.inf

    @property
    def _object(self) -> str:
        return f"{self._path}/{self._settings.name}"

    def _holder(self) -> str:
        return str((self._held or {}).get("spec", {}).get("holderIdentity") or "")

    async def _keep(self) -> bool:
        """Renew the lease as it was written last; where it has changed since, as `_try`."""
        if self._held is not None and await self._write(self._held):
            return True
        return await self._try()

    async def _try(self) -> bool:
        """Take or renew the lease; False while another one holds it."""
        try:
            held = await self._api.get(self._object)
        except ApiRefused as error:
            if error.status != 404:
                raise
            held = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
                "spec": {},
            }
        self._held = held
        if not self._is_free(held):
            return False
        return await self._write(held)

    def _is_free(self, held: Body) -> bool:
        spec, now = held.get("spec") or {}, self._clock()
        version = held["metadata"].get("resourceVersion", "")
        if version != self._seen[0]:
            self._seen = (version, now)
        holder = spec.get("holderIdentity")
        if not holder or holder == self._settings.identity:
            return True
        return now - self._seen[1] > int(spec.get("leaseDurationSeconds") or 1)

    async def _write(self, held: Body) -> bool:
        settings, spec = self._settings, held.get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_new = spec.get("holderIdentity") != settings.identity
        body = {
            **held,
            "spec": {
                **spec,
                "holderIdentity": settings.identity,
                "leaseDurationSeconds": settings.duration_s,
                "acquireTime": now if is_new else spec.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + int(is_new),
            },
        }
        sent_s = self._clock()
        try:
            if "resourceVersion" in held["metadata"]:
                self._held = await self._api.replace(self._object, body)
            else:
                self._held = await self._api.create(self._path, body)
        except ApiRefused as error:
            if error.status in (404, 409):  # another operator was first, or it was deleted
                return False
            raise
        self._renewed_s = sent_s
        return True
