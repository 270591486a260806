"""One run on this machine: make the data, start the loop over the local cluster, feed it events.

Invariant: whatever ends the run (the last step, an error, Ctrl-C), no process of it is left.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from heddle.local.cluster import LocalCluster
from heddle.local.processes import RUN_MARK, kill_processes, processes_with
from heddle.train.checkpoints import where_it_goes_on
from heddle.train.correction import (
    Correction,
    corrected_profile,
    correction_of,
    write_correction,
)
from heddle.train.data_set import make_data
from heddle.train.recorder import Happened, Recorder
from heddle.train.script import Event
from heddle_operator.apis.errors import InvalidJob, ProcessFailed
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.controller.agents import Agents
from heddle_operator.controller.planner_client import PlannerClient, search_settings_of
from heddle_operator.controller.planner_server import SearchSettings
from heddle_operator.controller.reconciler import Reconciler
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.decision import Decision
from heddle_operator.state.plan_reply import ReferencedPlan
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition, Node
from planner.profiles.profile import Profile, load_profile
from worker.contract import Report

REPORT_WAIT_S = 0.1  # how fresh steps are on the screen
PATIENCE_S = 120.0  # without a step that is due the run is given up
# Phases in which no step is due: ranks that write have limits of their own, a full disk has none.
WRITING = ("Saving", "Suspending", "Suspended")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is run where.

    Attributes:
        job: what is trained, as `load_job` read it.
        nodes: that are there at the start.
        script: what happens to them, in order.
        joiners: what the key `a` adds, in turn.
        profile: all costs, by which the view prices plans.
        profiles: folder of profiles that the planner reads; None: those that come with Heddle.
        emulates: ranks wait until the time of their GPU type's profile has passed.
        seed: of the search.
        evaluations: limit of the search; None: what the job says in seconds.
        is_patient: an event waits until the one before has been dealt with; a user's own script
            does not, so that it can kill a node in the middle of a change.
        data_options: of `heddle data prepare`, beside the output, where the job's text is built in.
        patience_s: without a step that is due the run is given up after so long.
        rank_entry: `module:function` of a rank process; None: the real one.
        peak_flops_s: of one rank of this machine; None: unknown.
        logs: folder for the logs of the pods; None: the run's own, which goes with it.
        plan: that the run follows; None: the planner's.
        ends_without_nodes: no key adds a node, so a run without any ends.
        begins_at: step of the checkpoint that was there before; None: there was none.
    """

    job: HeddleJob
    nodes: Composition
    script: tuple[Event, ...]
    joiners: tuple[Node, ...]
    profile: Profile
    profiles: Path | None = None
    emulates: bool = True
    seed: int = 1
    evaluations: int | None = None
    is_patient: bool = False
    data_options: tuple[str, ...] = ("--builtin", "text")
    patience_s: float = PATIENCE_S
    rank_entry: str | None = None
    peak_flops_s: float | None = None
    logs: Path | None = None
    plan: ReferencedPlan | None = None
    ends_without_nodes: bool = False
    begins_at: int | None = None


def search_settings(options: RunOptions) -> SearchSettings:
    """By what plans of a run are searched."""
    settings = Settings(plan_seed=options.seed, plan_evaluations=options.evaluations)
    found = search_settings_of(options.job, settings)
    return replace(
        found,
        budget_s=None if options.evaluations else found.budget_s,
        profiles=str(options.profiles) if options.profiles else None,
    )


class LocalRun:
    """Wires the loop to the local cluster for one run.

    Args:
        options: what to run.
        directory: for data, logs and the token; the caller removes it.
        say: gets each sentence on what is going on.
    """

    SAVES: ClassVar[bool] = False  # whether Ctrl-C and q save a checkpoint before the end

    def __init__(self, options: RunOptions, directory: Path, say: Callable[[str], None]) -> None:
        self.options = options
        self.recorder = Recorder(begins_at=options.begins_at)
        self.job = options.job
        self.run_id = self.job.metadata.uid or secrets.token_hex(8)
        self.profile = options.profile
        self.reference_losses: tuple[float, ...] = ()  # of whoever trains the same to compare
        self.has_quit = False
        self.is_suspending = False
        self.ended_by: signal.Signals | None = None  # who asked for the end: Ctrl-C or SIGTERM
        self._reconciler: Reconciler | None = None
        self._directory = directory
        self._logs = options.logs or directory
        self._logs.mkdir(parents=True, exist_ok=True)
        self._say = say
        self.on_steps: Callable[[], None] = lambda: None
        self.corrections: tuple[Correction, ...] = ()
        self._trigger = Trigger()
        self._environment = {**os.environ, RUN_MARK: self.run_id}
        token = secrets.token_hex(16)
        token_file = directory / "token"
        token_file.write_text(token, encoding="utf-8")
        token_file.chmod(0o600)
        elastic = self.job.spec.elastic
        entry = ("--rank-entry", options.rank_entry) if options.rank_entry else ()
        self.cluster = LocalCluster(
            self.job.name,
            self.run_id,
            self._logs,
            token_file,
            self._trigger,
            emulates=options.emulates,
            agent_command=(sys.executable, "-m", "worker", "agent", *entry),
            peer_timeout_s=elastic.peer_timeout_seconds,
            peak_flops_s=options.peak_flops_s,
            log_format=self.job.spec.worker.log_format or "text",
            device=self.job.spec.worker.device.lower(),
            referenced=options.plan,
        )
        self._agents = Agents(
            token,
            self._trigger,
            REPORT_WAIT_S,
            self._take_report,
            elastic.peer_timeout_seconds,
        )
        self._planning = PlannerClient(
            search_settings(options), self._trigger, {RUN_MARK: self.run_id}
        )
        self._left = list(options.script)
        self._stepped_s = time.monotonic()

    async def train(self) -> None:
        """Run the script until the job has ended.

        Raises:
            ProcessFailed: the data could not be made, or no step was trained for too long.
        """
        # Each takes seconds on a core of its own.
        await asyncio.gather(self._planning.start(), self._prepare_data())
        reconciler = self._reconciler = Reconciler(
            self.job,
            self.cluster,
            self._agents,
            self._planning,
            self._trigger,
            Settings(plan_seed=self.options.seed, report_wait_s=REPORT_WAIT_S),
            on_decision=self._take_decision,
            stalls_s=self.recorder.stalls_s,
        )
        for node in self.options.nodes.nodes:
            self.cluster.join(node, since_s=0.0)
        self._stepped_s = time.monotonic()
        loop = asyncio.create_task(reconciler.run(), name="reconcile")
        try:
            while not loop.done():
                await asyncio.wait({loop}, timeout=1.0)
                if self.recorder.phase == "Suspended" and not self.recorder.pods:
                    return
                if self.recorder.refused_checkpoint:
                    raise InvalidJob(
                        f"{self.recorder.refused_checkpoint}, or --fresh", code="Refused"
                    )
                if not loop.done():
                    self.check_progress()
            decision = loop.result()
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        if decision.phase == "Failed":
            raise ProcessFailed(
                f"the job failed ({decision.reason or 'Failed'}): {decision.message}"
            )

    def check_progress(self) -> None:
        """Whether steps can still come; while ranks only write, none is due.

        Raises:
            ProcessFailed: no node is left, no plan fits those that are there at the start, or no
                step was trained for too long.
        """
        if self.options.ends_without_nodes and not self.cluster.nodes:
            raise ProcessFailed(
                "no node is left, and no event of the script can bring one; "
                f"{where_it_goes_on(self.job, self.recorder)}"
            )
        if self.options.ends_without_nodes and not self.recorder.epochs:
            self._check_planned()
        if self.recorder.phase in WRITING:
            self._stepped_s = time.monotonic()
        patience_s = self.options.patience_s
        if time.monotonic() - self._stepped_s > patience_s:
            raise ProcessFailed(
                f"no step was trained for {patience_s:.0f} s ({self.recorder.message}); "
                f"the last lines of the pods' logs: {self._last_words()}"
            )

    def _check_planned(self) -> None:
        """Whether a first step can come; events of a script wait for one."""
        if self.recorder.why_no_plan:
            raise ProcessFailed(self.recorder.why_no_plan, code="Refused")

    def suspend(self) -> bool:
        """Save a checkpoint and end; False if no rank holds a new step to save."""
        if not self.recorder.step or self._reconciler is None or not self.cluster.nodes:
            return False
        if not self.recorder.holds_state and self.recorder.phase != "Saving":
            return False
        self.is_suspending = True
        if self.recorder.phase != "Saving":
            spec = self.job.spec.model_copy(update={"suspend": True})
            self.job = self._reconciler.job = self.job.model_copy(update={"spec": spec})
            self._trigger.set()
        return True

    async def end(self) -> None:
        """Work after the last step, before all processes end."""

    async def close(self) -> None:
        """End every process of the run."""
        await self._agents.close()
        await self._planning.close()
        await self.cluster.close()

    def end_orphans(self) -> int:
        """End what is left of the run and count it; call it after `close`."""
        left = processes_with(**{RUN_MARK: self.run_id})
        kill_processes(left)
        return len(left)

    @property
    def restart_s(self) -> float | None:
        """From spawning the first pods to the first step: what a cold restart of the job costs."""
        started = [s.first_step_s for s in self.recorder.switches.get(1, {}).values()]
        first_s = max((s for s in started if s is not None), default=None)
        begin_s = self.cluster.first_pod_s
        return first_s - begin_s if first_s is not None and begin_s is not None else None

    def apply_event(self, event: Event) -> None:
        """Let one thing happen to the cluster."""
        present = event.name in self.cluster.nodes
        if event.verb == "join" and event.node is not None and not present:
            self._say(f"step {self.recorder.step}: node {event.name} joins")
            self.cluster.join(event.node)
            at_s = time.monotonic()
        elif event.verb == "drain" and present:
            notice = f", {event.notice_s:g} s are left" if event.notice_s < math.inf else ""
            self._say(f"step {self.recorder.step}: node {event.name} is drained{notice}")
            self.cluster.drain(event.name, event.notice_s)
            at_s = time.monotonic()
        elif event.verb == "kill" and present:
            self._say(f"step {self.recorder.step}: node {event.name} is killed without notice")
            at_s = self.cluster.kill(event.name)
        else:
            return
        self.recorder.happened.append(Happened(at_s, event))

    def _take_report(self, report: Report) -> None:
        before = self.recorder.step
        self.recorder.take_report(report)
        step = self.recorder.step
        if step > before:
            self._stepped_s = time.monotonic()
            self.on_steps()
            self._correct()
        while self._left and self._left[0].at_step <= step and step:
            if self.options.is_patient and not self._is_settled():
                break
            self.apply_event(self._left.pop(0))

    def _correct(self) -> None:
        """Plan by this run's own times where a step takes much longer than predicted."""
        folder, recorder = self.options.profiles, self.recorder
        if folder is None or self.options.emulates:
            return
        found = correction_of(self.job.workload, recorder, self.profile, self.corrections)
        if found is None:
            return
        self.corrections = (*self.corrections, found)
        self._say(f"step {recorder.step}: {found}")
        if self.job.spec.output is not None:
            write_correction(Path(self.job.spec.output.path), self.run_id, found)
        if not found.changes:
            return
        target = self._directory / f"profiles-{len(self.corrections)}"
        model = self.job.workload.model.name
        corrected_profile(folder, target, model, found.factors)
        self.options = replace(self.options, profiles=target)
        self.profile = load_profile(model, target)
        self._planning.reprice(search_settings(self.options), time.monotonic())

    def _is_settled(self) -> bool:
        """Whether the loop is at rest: the newest epoch trains and no node is being left."""
        leaving = any(node.leaving_at_s is not None for node in self.cluster.nodes.values())
        newest = self.recorder.epochs[-1] if self.recorder.epochs else None
        is_live = newest is not None and newest.outcome == "live"
        return is_live and not leaving and self.recorder.keeps_plan

    def _take_decision(self, decision: Decision, observed: Observed, now: float) -> None:
        if decision.message != self.recorder.message:
            self._say(f"step {self.recorder.step}: {decision.phase}: {decision.message}")
        known = set(self.recorder.restores)
        self.recorder.take_decision(decision, observed, now)
        for epoch, restore in self.recorder.restores.items():
            if epoch not in known:
                self._say(
                    f"epoch {epoch} goes on from the checkpoint of step {restore.step} in "
                    f"{restore.path}"
                )

    async def _prepare_data(self) -> None:
        """Make pairs of the job's texts, where there are any."""
        data = self.job.spec.data
        if data.builtin is not None:
            self._say("the data set of the sources of Python's standard library is prepared")
        for text in data.texts:
            self._say(f"the data set of {text} is prepared")
        self.job = await make_data(
            self.job, str(self._directory), self.options.data_options, self._environment
        )

    def _last_words(self) -> str:
        lines = []
        for log in sorted(self._logs.glob("*.log")):
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if words:
                lines.append(f"{log.stem}: {words[-1]}")
        return "; ".join(lines) or "none"


def engine_name() -> str:
    """The training libraries, with their versions."""
    return f"deepspeed {version('deepspeed')} PipelineEngine, torch {version('torch')}, gloo"
