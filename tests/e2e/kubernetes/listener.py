"""Hears what a job's agents say, from outside the cluster, and keeps the whole loss curve.

It runs the operator's own client of the agents in a thread, through forwarded ports, so that it
hears them while the operator is down, killed or gone.

Invariant: what an agent said is never forgotten, even if its pod, its node or the operator is gone.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from types import TracebackType

from heddle_operator.controller.agents import Agents
from heddle_operator.inventory.pods import view_pod
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.snapshot import ObservedPod
from tests.cluster.errors import ClusterFailed
from tests.e2e.kubernetes.curve import Curve
from tests.e2e.kubernetes.job import WITHIN_S, Job, Json
from tests.e2e.kubernetes.reference import Reference
from worker.contract import RankReport, Report, StepRecord

ASK_EVERY_S = 0.2  # an agent does not answer for a further step alone
_WATCH_S = 3600.0
_AGENT_PORT = 8470


class Listener:
    """Follows one job until it is closed; it is its own context manager."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.curve = Curve()
        self.reports: dict[str, Report] = {}
        self.told_s: dict[tuple[int, str], float] = {}  # when a directive was first heard of
        self._heard = threading.Condition()
        self._listens = threading.Event()
        self._ports: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._agents: Agents | None = None
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"agents of {job.name}", daemon=True),
            threading.Thread(target=self._watch, name=f"pods of {job.name}", daemon=True),
        ]

    def __enter__(self) -> Listener:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()

    @property
    def step(self) -> int:
        """The newest step that was trained; -1 before the first."""
        with self._heard:
            return self.curve.step

    def first_step_s(self, epoch: int) -> float:
        """When the first step of an epoch began, by the machine's monotonic clock."""
        with self._heard:
            return self.curve.first_step_s(epoch)

    def gap_s(self, epoch: int) -> float:
        """The time without a step before an epoch; see `Curve`."""
        with self._heard:
            return self.curve.gap_s(epoch)

    def history(self) -> list[StepRecord]:
        """See `Curve`."""
        with self._heard:
            return self.curve.history()

    def wait(
        self, claim: Callable[[Listener], bool], what: str, within_s: float = WITHIN_S
    ) -> None:
        """Wait until the claim holds; it is asked at each report.

        Raises:
            AssertionError: it does not within the time.
        """
        with self._heard:
            if not self._heard.wait_for(lambda: claim(self), within_s):
                ranks = {pod: report.ranks for pod, report in self.reports.items()}
                raise AssertionError(
                    f"waited {within_s:g} s for {what}; step {self.step}, ranks {ranks}"
                )

    def wait_for_steps(self, more: int, within_s: float = WITHIN_S) -> None:
        """Wait until so many further steps were trained."""
        wanted = self.step + more
        self.wait(lambda heard: heard.step >= wanted, f"{more} more steps", within_s)

    def ranks(self) -> dict[tuple[str, int], RankReport]:
        """What every rank process of the pods that are there said last, by pod and slot."""
        with self._heard:
            held = dict(self.reports)
        there = self.job.pods()
        return {
            (pod, rank.slot): rank
            for pod, report in held.items()
            if pod in there
            for rank in report.ranks
        }

    def processes(self) -> set[tuple[str, int, int, float]]:
        """(pod, slot, pid, start) of every rank process that lives."""
        return {(pod, slot, rank.pid, rank.started_s) for (pod, slot), rank in self.ranks().items()}

    def state_digests(self, epoch: int) -> set[str]:
        """Digests of the whole state before and after the switch to an epoch, by every rank."""
        with self._heard:
            switches = [s for r in self.reports.values() for s in r.switches if s.epoch == epoch]
        found = {s.state_digest_before for s in switches} | {s.state_digest_after for s in switches}
        return {digest for digest in found if digest is not None}

    def assert_exact(self, reference: Reference) -> None:
        """Every step was trained exactly once, in order, as one process trains it."""
        with self._heard:
            curve = deepcopy(self.curve)
        faults = curve.faults(reference.losses(curve.step + 1))
        assert not faults
        epochs = sorted({record.epoch for record in curve.history()})
        print(f"{self.job.name}: {curve.step + 1} steps in epochs {epochs}, exact")

    def assert_nothing_lost(self) -> None:
        """Every step was trained exactly once."""
        with self._heard:
            curve = deepcopy(self.curve)
        assert not curve.gaps()
        epochs = sorted({epoch for epoch, _, _ in curve.records})
        print(f"{self.job.name}: {curve.step + 1} steps in epochs {epochs}, none lost")

    def _hear(self, report: Report) -> None:
        with self._heard:
            self.reports[report.pod] = report
            if report.epoch is not None and report.phase is not None:
                self.told_s.setdefault((report.epoch, report.phase), time.monotonic())
            self.curve.add(report.pod, report.steps)
            self._heard.notify_all()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._agents = Agents(self.job.token(), Trigger(), ASK_EVERY_S, self._hear)
        self._listens.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._agents.close())
        self._loop.close()

    def _watch(self) -> None:
        self._listens.wait()
        deadline = time.monotonic() + _WATCH_S
        while not self._is_closing:
            try:
                for seen in self.job.cluster.api.watch(self.job.pods_path, deadline):
                    if self._is_closing:
                        return
                    self._follow(seen)
            except (OSError, http.client.HTTPException, ClusterFailed):
                time.sleep(ASK_EVERY_S)  # the server went away

    def _follow(self, seen: Mapping[str, Json]) -> None:
        found = []
        for pod in seen.values():
            view = view_pod(pod, True, time.time(), 0.0)
            if view.address is not None:
                found.append(self._forwarded(view, pod["metadata"]["uid"]))
        self._loop.call_soon_threadsafe(self._tell, found)

    def _tell(self, pods: list[ObservedPod]) -> None:
        if self._agents is not None and not self._is_closing:
            self._agents.watch(pods)

    def _forwarded(self, pod: ObservedPod, uid: str) -> ObservedPod:
        if uid not in self._ports:
            assert pod.address is not None
            self._ports[uid] = self.job.cluster.forward(pod.address.rpartition(":")[0], _AGENT_PORT)
        return replace(pod, address=f"127.0.0.1:{self._ports[uid]}")
