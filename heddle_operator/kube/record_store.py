"""The epoch records of one job, each a ConfigMap.

Invariant: an epoch is adopted by creating its ConfigMap, sealed and closed by writes with its
resourceVersion as precondition; whoever comes second gets `ClusterConflict`.
A record that a rule of the cluster refuses is tried again after a pause that doubles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from heddle_operator.apis.errors import (
    ClusterConflict,
    ClusterUnavailable,
    NameTaken,
    RecordTooLarge,
)
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import ApiRefused, Body, KubeApi
from heddle_operator.kube.earlier_objects import EarlierObjects
from heddle_operator.kube.malformed_objects import MalformedObjects
from heddle_operator.kube.paths import object_path
from heddle_operator.ports.trigger import Trigger
from heddle_operator.resources.epoch_config_map import (
    check_size,
    epoch_name,
    record_of_body,
    record_to_body,
)
from heddle_operator.resources.metadata import check_owned
from heddle_operator.resources.pinned_workers import WORKERS, workers_of_json, workers_to_json
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, PruneEpoch, SealEpoch
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.epoch_records import adopted, check_prunable, closed, sealed
from planner.pauses import doubled_s

PAUSES_S = (1.0, 30.0)  # first and longest pause after a record was refused for good


class RecordStore:
    """Reads the records of a job from the cache, and writes them to the API server.

    Args:
        job: whose records these are.
        api: of the cluster.
        cache: holds the job's ConfigMaps.
        defaults: what an administrator gives all worker pods now; a start pins them.
        trigger: set when the words of a refusal change.
        malformed: reads objects that anybody may have forged.
        token: of the job; what is pinned in its records is signed with it.
        offset_s: the server's clock less the loop's.

    Attributes:
        taken: whose object has the name of the next record, in words; "" if nobody's has.
        unrecorded: why the cluster takes no record, in words; "" if it does.
    """

    def __init__(
        self,
        job: HeddleJob,
        api: KubeApi,
        cache: ObjectCache,
        defaults: WorkerDefaults,
        trigger: Trigger,
        malformed: MalformedObjects,
        token: str,
        offset_s: float,
    ) -> None:
        self.taken = ""
        self._earlier = EarlierObjects()
        self.unrecorded = ""
        self._job = job
        self._api = api
        self._cache = cache
        self._defaults = defaults
        self._trigger = trigger
        self._malformed = malformed
        self._token = token
        self._offset_s = offset_s
        self._read: dict[tuple[str, str], EpochRecord] = {}
        self._refusals = 0  # for good, in a row
        self._try_again_s = -math.inf

    def records(self) -> list[tuple[EpochRecord, Mapping[str, Any]]]:
        """The records with their ConfigMaps, oldest first."""
        found, kept = [], {}
        metadata = self._job.metadata
        for body in self._cache.own("ConfigMap", metadata.namespace, metadata.uid):
            key = (body["metadata"]["uid"], body["metadata"]["resourceVersion"])
            record = self._read.get(key) or self._malformed.read(
                body, partial(record_of_body, body, self._offset_s)
            )
            if record is not None:
                kept[key] = record
                found.append((record, body))
        self._read = kept
        return sorted(found, key=lambda pair: pair[0].epoch)

    def workers(self) -> WorkerDefaults:
        """Defaults of the job's pods: those of its start if recorded, else those of now."""
        for _, body in reversed(self.records()):
            text = body["data"].get(WORKERS, "")
            read = partial(workers_of_json, text, self._defaults, self._token)
            found = self._malformed.read(body, read) if text else None
            if found is not None:
                return found
        return self._defaults

    async def adopt(self, action: AdoptPlan) -> None:
        """Create the record of an epoch.

        Raises:
            ClusterConflict: the epoch is on record already.
            ClusterUnavailable: the cluster takes no record, or none of that name.
            ApiRefused: the API server did not take it.
        """
        before = [held for held, _ in self.records()]
        record = adopted(before, action, time.monotonic())
        body = record_to_body(self._job, record, self._offset_s)
        pinned = self._defaults if action.reason == "start" else self.workers()
        body["data"][WORKERS] = workers_to_json(pinned, self._token)
        plans = [action.plan, *(held.plan for held in before if held.outcome == "live")]
        try:
            check_size(body, sum(p.gpus for p in plans), sum(len(p.nodes) for p in plans))
        except RecordTooLarge as error:
            self.unrecorded = str(error)
            raise ClusterUnavailable(str(error), again_s=PAUSES_S[1]) from None
        self._check_pause()
        try:
            made = await self._api.create(self._path(), body)
        except ApiRefused as error:
            if error.status != 409:
                self._note_refused(error)
                raise
            await self._take_over(action.epoch)
            raise ClusterConflict(f"epoch {action.epoch} was adopted already") from None
        self.taken = ""
        self._note_written(made)

    async def write(self, action: SealEpoch | CloseEpoch) -> None:
        """Seal or close an epoch; what is written already is fine.

        Raises:
            ClusterConflict: the record is gone, or another operator wrote it.
            ClusterUnavailable: the cluster takes no record.
            ApiRefused: the API server did not take it.
        """
        found = next((pair for pair in self.records() if pair[0].epoch == action.epoch), None)
        if found is None:
            raise ClusterConflict(f"epoch {action.epoch} is not on record")
        record, held = found
        if isinstance(action, SealEpoch):
            changed = sealed(record, action)
        else:
            changed = closed(record, action, time.monotonic())
        if changed == record:
            return
        self._check_pause()
        body = record_to_body(self._job, changed, self._offset_s)
        if WORKERS in held["data"]:
            body["data"][WORKERS] = held["data"][WORKERS]
        body["metadata"]["resourceVersion"] = held["metadata"]["resourceVersion"]
        path = self._path(action.epoch)
        try:
            made = await self._api.replace(path, body)
        except ApiRefused as error:
            if error.status == 404:
                raise ClusterConflict(f"the record of epoch {action.epoch} was deleted") from None
            if error.status == 409:
                self._cache.put("ConfigMap", await self._api.get(path))
                raise ClusterConflict(
                    f"another operator wrote the record of epoch {action.epoch}"
                ) from None
            self._note_refused(error)
            raise
        self._note_written(made)

    async def prune(self, action: PruneEpoch) -> None:
        """Delete the record of an epoch that nothing needs; one that is gone is fine.

        Raises:
            ClusterConflict: it is the newest, and its number would be used again.
            ApiRefused: the API server did not delete it.
        """
        bodies = {record.epoch: body for record, body in self.records()}
        check_prunable(bodies, action)
        if action.epoch in bodies:
            uid = bodies[action.epoch]["metadata"]["uid"]
            await self._api.delete(self._path(action.epoch), uid)
            self._cache.drop(uid)
            self._try_again_s = -math.inf  # a quota may have room for another one now

    async def _take_over(self, epoch: int) -> None:
        """Put the record that another operator made into the cache.

        Raises:
            ClusterUnavailable: the ConfigMap of that name is no record of this job.
        """
        body = await self._api.get(self._path(epoch))
        try:
            check_owned(self._job, body, "ConfigMap")
        except NameTaken as error:
            self.taken = str(error) if self._earlier.is_told(error) else ""
            raise ClusterUnavailable(str(error)) from None
        self._cache.put("ConfigMap", body)

    def _check_pause(self) -> None:
        """Refuse to ask the API server again so soon for what it refused for good.

        Raises:
            ClusterUnavailable: in the words of that refusal.
        """
        left_s = self._try_again_s - time.monotonic()
        if left_s > 0:
            raise ClusterUnavailable(self.unrecorded, again_s=left_s)

    def _note_refused(self, error: ApiRefused) -> None:
        """A record that the API server does not take as it is will not be taken the next time."""
        if not error.is_final:
            return
        self._refusals += 1
        pause_s = doubled_s(PAUSES_S[0], self._refusals, PAUSES_S[1])
        self._try_again_s = time.monotonic() + pause_s
        if self.unrecorded != str(error):
            self.unrecorded = str(error)
            self._trigger.set()

    def _note_written(self, made: Body) -> None:
        self.unrecorded, self._refusals, self._try_again_s = "", 0, -math.inf
        self._cache.put("ConfigMap", made)

    def _path(self, *epochs: int) -> str:
        names = (epoch_name(self._job, epoch) for epoch in epochs)
        folder = object_path("/api/v1/namespaces", self._job.metadata.namespace, "configmaps")
        return object_path(folder, *names)
