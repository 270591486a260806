"""One job of the cluster while it exists: its loop, its agents, its planner, its status.

Invariant: it holds nothing that matters; one that is cancelled and started anew goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from heddle_operator.apis.errors import EarlierJobRemains, InvalidJob, NameTaken, NewerRecord
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.controller import effective_spec
from heddle_operator.controller.effective_spec import (
    EffectiveSpec,
    accepted,
    ended_wall_s,
    spec_while_refused,
    stub_of,
    ttl_in,
)
from heddle_operator.controller.job_work import ControllerContext, JobWork
from heddle_operator.controller.reconciler import nothing_is_left
from heddle_operator.controller.writers.event_posts import EventPosts
from heddle_operator.controller.writers.status_writer import RETRY_S, StatusWriter, until_done
from heddle_operator.kube.client import ApiRefused
from heddle_operator.kube.owned_objects import JobObjects, now_text
from heddle_operator.kube.references.config import referenced_config
from heddle_operator.ports.pace import Pace
from heddle_operator.ports.trigger import Trigger
from heddle_operator.report.conditions import HolderCount, live_record
from heddle_operator.report.events import UNSEEN, events_of
from heddle_operator.report.status import Refused, count_holders, status_of
from heddle_operator.report.timings import reconfigurations
from heddle_operator.resources.epoch_config_map import check_format
from heddle_operator.rules.drain import Drain, drain_of
from heddle_operator.state.actions import RecordEvent
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.epoch_record import Outcome
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from planner.errors import HeddleError

LOG = logging.getLogger(__name__)
LOOK_PAUSE_S, LOOK_BURST = 0.05, 20  # agents and others decide how often a job is looked at
PROTECT_PAUSE = 3.0  # times the duration of a try to protect pods that failed


class JobController:
    """Follows one job until it has ended or is cancelled.

    Args:
        body: the HeddleJob object.
        context: what all jobs share.
        before: the job as it was accepted last, if this operator did so.

    Attributes:
        accepted: the job as it was accepted last; None: this operator never did.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        context: ControllerContext,
        before: HeddleJob | None = None,
    ) -> None:
        self.accepted = before
        self.trigger = Trigger()
        self._body = body
        self._context = context
        self._seen: tuple[Decision, Observed] | None = None
        self._holders: tuple[str, HolderCount] | None = None
        self._posts = EventPosts()
        self._status = StatusWriter(body, context, self._posts)
        self._is_gone = False
        self._work: JobWork | None = None
        self._rests = False
        self._protect_again_s = -math.inf

    def gone(self) -> None:
        """The job was deleted: when this is cancelled, its pods are told not to train on."""
        self._is_gone = True

    def annotated(self, body: Mapping[str, Any]) -> None:
        """The object changed, and not its spec: a user may ask for a checkpoint."""
        annotations = body["metadata"].get("annotations")
        if annotations == self._body["metadata"].get("annotations"):
            return
        self._body = {**self._body, "metadata": body["metadata"]}
        if self._work is not None:
            self._work.reconciler.annotate(annotations)
            self.trigger.set()

    async def run(self) -> None:
        """Follow the job until it has ended."""
        self._rests = False
        self._status.write_anew()
        try:
            if self._work is None:
                self._work = await self._begin()
            else:
                await self._wait_for_known_records()
            if self._work is not None:
                await self._reconcile(self._work)
            else:
                await self._posts.finish()
        finally:
            await self._posts.cancel()
            if not self._rests:
                await self.close()

    async def fail(self, error: str) -> None:
        """Say in the status that the operator itself failed on the job, in a few words."""
        await self._status.fail(error)

    def rest(self) -> None:
        """The Lease is lost: when this is cancelled, what it has heard stays for the next run."""
        self._rests = True

    async def close(self) -> None:
        """Hear nothing more."""
        work, self._work = self._work, None
        if work is not None:
            await work.close(self._is_gone)

    async def _begin(self) -> JobWork | None:
        await self._context.turns.wait()
        effective = await self._effective_spec()
        if effective is None:
            return None
        await self._wait_for_known_records()
        if self._has_ended and not self._outcomes:  # its status alone says so
            await self._expire(JobObjects(effective.job, self._context.api), Observed())
            return None
        objects = JobObjects(effective.job, self._context.api, self._context.identity)
        return JobWork(
            effective,
            await self._token(objects),
            objects,
            self._context,
            self.trigger,
            on_decision=self._note,
            stalls_s=self._stalls_s,
            on_event=lambda event: self._posts.post(objects, event),
        )

    async def _effective_spec(self) -> EffectiveSpec | None:
        """The spec by which the job is followed; None, and its status says so, if there is none."""
        config = None
        try:
            config = await self._config()
            self.accepted = accepted(
                self._body, config, self._context.defaults, self._context.settings
            )
            return EffectiveSpec(self.accepted)
        except HeddleError as error:
            refusal = str(error)
        if self._has_ended:
            LOG.warning("it has ended, and its spec is refused: %s", refusal)
            self._context.arbiter.forget(self._body["metadata"]["uid"])
            await self._expire(JobObjects(stub_of(self._body), self._context.api), Observed())
            return None
        effective = None
        if self._trains:
            defaults, settings = self._context.defaults, self._context.settings
            effective = spec_while_refused(
                self._body, config, defaults, settings, self.accepted, refusal
            )
        if effective is None:
            await self._refuse(refusal)
        else:
            LOG.warning("it trains, and its spec is refused: %s", effective.refusal)
        return effective

    async def _config(self) -> Mapping[str, Any] | None:
        """The config.json that the job names, once it is there; until then the job says so.

        Raises:
            InvalidJob: it cannot be had, and the job can go on as it was accepted before, or has
                ended.
        """
        while True:
            try:
                return await referenced_config(self._context.api, self._body)
            except (ApiRefused, InvalidJob) as error:
                sentence = f"spec.model.configRef: {error}"
                refused = error if isinstance(error, ApiRefused) else None
                is_missing = refused is not None and refused.status == 404
                passes = refused is not None and not (is_missing or refused.is_final)
                if self._has_ended or (not passes and self.accepted and self._trains):
                    raise InvalidJob(
                        sentence, field="spec.model.configRef", code=error.code or "Missing"
                    ) from None
                if is_missing:
                    await self._status.wait(sentence, "ConfigMapMissing", self._trains)
                elif passes:
                    LOG.warning("%s", sentence)
                else:
                    await self._refuse(sentence)
            await asyncio.sleep(RETRY_S)

    @property
    def _trains(self) -> bool:
        return effective_spec.trains(self._outcomes, self._status.known)

    @property
    def _has_ended(self) -> bool:
        return effective_spec.has_ended(self._outcomes, self._status.known)

    @property
    def _outcomes(self) -> tuple[Outcome, ...]:
        return effective_spec.outcomes_of(self._own("ConfigMap"))

    async def _wait_for_known_records(self) -> None:
        """Wait until no record is there that only a newer operator reads; the job says so."""
        while True:
            try:
                for body in self._own("ConfigMap"):
                    check_format(body)
                return
            except NewerRecord as error:
                await self._refuse(str(error), "NewerRecord")
            await asyncio.sleep(RETRY_S)

    def _own(self, kind: str) -> tuple[Mapping[str, Any], ...]:
        job = stub_of(self._body).metadata
        return self._context.cache.own(kind, job.namespace, job.uid)

    async def _token(self, objects: JobObjects) -> str:
        """The job's token, once its Secret can be had; until then the job says why not."""
        while True:
            try:
                return await objects.token()
            except EarlierJobRemains as error:
                await self._status.wait(str(error), "EarlierJobRemains", self._trains)
            except NameTaken as error:
                await self._refuse(str(error), "NameTaken")
            except ApiRefused as error:
                if error.is_final:
                    sentence = f"the cluster refuses the job's Secret: {error}"
                    await self._refuse(sentence, "ObjectRefused")
                else:
                    LOG.warning("%s", error)
            await asyncio.sleep(RETRY_S)

    async def _reconcile(self, work: JobWork) -> None:
        effective, reconciler, objects = work.effective, work.reconciler, work.objects
        job, refusal = effective.job, effective.refusal
        pace = Pace(LOOK_PAUSE_S, LOOK_BURST)
        if refusal:
            key = f"InvalidSpec-{job.metadata.generation}-{refusal}"
            self._posts.post(objects, RecordEvent(key, "InvalidSpec", refusal))
        if not self._context.sees_all_pods:
            self._posts.post(objects, RecordEvent("unseen", "GPUsNotSeen", UNSEEN))
        while True:
            await self._context.turns.wait()
            decision = await reconciler.reconcile()
            view = reconciler.view
            assert view is not None, "a pass leaves its view"
            view = _with_words_of(objects, view)
            drain = drain_of(view)
            done = replace(decision, actions=reconciler.done)
            for event in events_of(view, done, drain):
                if reconciler.emitted.add(event, time.monotonic()):
                    self._posts.post(objects, event)
            again = sooner(decision.look_again_s, await self._protect(objects, drain))
            try:
                wait_s = await self._write(work, decision, view, drain)
                again = sooner(again, wait_s)
                if nothing_is_left(decision, view.observed):
                    await objects.delete_budgets()
                    break
            except ApiRefused as error:
                LOG.warning("%s", error)
                again = sooner(again, RETRY_S)
            await asyncio.sleep(pace.wait_s(time.monotonic()))
            await self.trigger.wait(again)
        await self._posts.finish()
        await self._expire(objects, view.observed)

    async def _protect(self, objects: JobObjects, drain: Drain) -> float | None:
        """Let evictions do what they may do now, and keep the token that new pods need.

        Answers the seconds until that is tried again, if it failed.  A failure keeps nothing else
        from the job: its status is what says it.  Where it takes long to fail, as behind a silent
        webhook, most passes go without a try.
        """
        began_s, again = time.monotonic(), None
        if began_s < self._protect_again_s:
            return self._protect_again_s - began_s
        pods = self._own("Pod")
        for work in (partial(objects.write_budgets, pods, drain), objects.keep_token):
            try:
                await work()
            except ApiRefused as error:
                LOG.warning("%s", error)
                again = max(RETRY_S, PROTECT_PAUSE * (time.monotonic() - began_s))
                self._protect_again_s = time.monotonic() + again
        return again

    async def _expire(self, objects: JobObjects, observed: Observed) -> None:
        """Delete the job once `ttlSecondsAfterFinished` have passed since its end.

        The end is on record, or, of a job that never had an epoch, in its conditions.
        """
        ttl_s = ttl_in(self._body)
        if ttl_s is None:
            return
        now, offset_s = time.monotonic(), self._context.api.clock.offset_s
        ended = [r for r in observed.epochs if r.outcome in ("complete", "failed")]
        ended_s = ended[0].closed_s if ended else None
        if ended_s is None:
            ended_s = (ended_wall_s(self._status.known) or now + offset_s) - offset_s
        await asyncio.sleep(max(0.0, ended_s + ttl_s - now))
        await until_done(objects.delete_job)

    async def _write(
        self, work: JobWork, decision: Decision, view: View, drain: Drain
    ) -> float | None:
        """Write the status if it is due; seconds until it may be written next."""
        effective, objects = work.effective, work.objects
        job, ended = effective.job, decision.phase in ("Complete", "Failed")
        holders = self._count_holders(job, view.observed)
        before, refusal = self._status.known, effective.refusal
        status = status_of(view, decision, holders, drain, before, now_text(), refusal)
        done = replace(decision, actions=work.reconciler.done)
        self._context.metrics.take(job.metadata.namespace, job.name, status, done)
        return await self._status.write(objects, status, has_ended=ended)

    def _count_holders(self, job: HeddleJob, observed: Observed) -> HolderCount | None:
        live = live_record(observed)
        if live is None:
            return None
        if self._holders is None or self._holders[0] != live.plan.digest:
            self._holders = (live.plan.digest, count_holders(job.workload.model, live.plan))
        return self._holders[1]

    def _note(self, decision: Decision, observed: Observed, _: float) -> None:
        self._seen = (decision, observed)
        if self.trigger.since_s is not None:
            self._context.metrics.decided(time.monotonic() - self.trigger.since_s)

    def _stalls_s(self) -> tuple[float, ...]:
        """Stalls of planned moves: a loss waits for time-outs that no move has to wait for."""
        seen = reconfigurations(self._seen[1]) if self._seen else ()
        return tuple(change.stall_s for change in seen if change.reason != "loss")

    async def _refuse(self, sentence: str, reason: Refused = "InvalidSpec") -> None:
        """See `StatusWriter.refuse`."""
        trains = self._trains or (reason == "NewerRecord" and bool(self._own("Pod")))
        await self._status.refuse(sentence, reason, trains)


def _with_words_of(objects: JobObjects, view: View) -> View:
    """The look, with what keeps the job's own objects from being written."""
    if not objects.taken and not objects.refused:
        return view
    taken = (*view.observed.taken, *filter(None, (objects.taken,)))
    seen = replace(view.observed, taken=taken, unprotected=objects.refused)
    return replace(view, observed=seen)
