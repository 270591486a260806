"""History of a run, gathered from reports and decisions while it happens.

Invariants: append-only; what a report tells twice is kept once.  What a step adds is bounded, but
for its loss, and reading costs no more the longer a run is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from heddle.train.pod_steps import PodSteps
from heddle.train.script import Event
from heddle_operator.epochs.ending import output_failure
from heddle_operator.report.timings import stall_of
from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    RecordEvent,
    RequestPlan,
    SealEpoch,
)
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from worker.contract import (
    EvaluationRecord,
    Report,
    Restore,
    SaveRecord,
    StepRecord,
    SwitchRecord,
)
from worker.stall import Stall, measure_stall


@dataclass(frozen=True, slots=True)
class Refused:
    """A composition for which the plan was kept.

    Attributes:
        at_s: when, by the monotonic clock.
    """

    composition: Composition
    gain_percent: float
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the script or of the user, and when it happened, by the monotonic clock."""

    at_s: float
    event: Event


@dataclass
class EpochTimes:
    """When the loop did what for one epoch."""

    halted_s: float = 0.0
    agreed_s: float = 0.0


@dataclass(kw_only=True)
class Recorder:
    """Everything the result and the view need."""

    steps: dict[int, dict[str, PodSteps]] = field(default_factory=dict)  # by epoch and pod
    step: int = 0  # completed ones
    evaluations: dict[int, EvaluationRecord] = field(default_factory=dict)
    switches: dict[int, dict[tuple[str, int], SwitchRecord]] = field(default_factory=dict)
    processes: dict[int, dict[int, dict[str, object]]] = field(default_factory=dict)
    computing: dict[int, dict[int, float]] = field(default_factory=dict)
    times: dict[int, EpochTimes] = field(default_factory=dict)
    happened: list[Happened] = field(default_factory=list)
    epochs: tuple[EpochRecord, ...] = ()
    refusals: dict[str, Refused] = field(default_factory=dict)
    replies: dict[str, PlanReply] = field(default_factory=dict)
    overruns: int = 0
    phase: str = "Pending"
    message: str = ""
    keeps_plan: bool = False
    output_failure: str = ""  # why the final weights cannot be written now
    refused_checkpoint: str = ""  # why the run cannot go on from its checkpoint
    why_no_plan: str = ""  # that fits the nodes that are there
    pods: int = 0  # that are there
    saves: dict[tuple[int, int, int], SaveRecord] = field(default_factory=dict)
    begins_at: int | None = None  # step of the checkpoint that was there before
    restores: dict[int, Restore] = field(default_factory=dict)  # by the epoch that began from it
    _losses: dict[int, tuple[int, float]] = field(default_factory=dict)  # by step; with its epoch
    _halted_s: float | None = None
    _agreed_s: float | None = None

    @property
    def holds_state(self) -> bool:
        """Whether ranks hold the newest state, as far as epochs and steps tell."""
        for record in reversed(self.epochs):
            if record.outcome == "open" and self.steps_of(record.epoch):
                return True
            if record.outcome not in ("open", "aborted"):
                return record.outcome == "live"
        return False

    def take_report(self, report: Report) -> None:
        """Keep what a report tells anew."""
        for step in report.steps:
            self._take_step(report.pod, step)
        for evaluation in report.evaluations:
            self.evaluations[evaluation.step] = evaluation
        for save in report.saves:
            self.saves[save.epoch, save.step, save.rank] = save
        for switch in report.switches:
            self.switches.setdefault(switch.epoch, {})[(report.pod, switch.slot)] = switch
        for rank in report.ranks:
            self.overruns = max(self.overruns, rank.overruns)
            if rank.epoch is not None and rank.rank is not None and rank.phase == "training":
                if rank.compute_s is not None:
                    self.computing.setdefault(rank.epoch, {})[rank.rank] = rank.compute_s
                self.processes.setdefault(rank.epoch, {})[rank.rank] = {
                    "rank": rank.rank,
                    "pod": report.pod,
                    "node": report.node,
                    "slot": rank.slot,
                    "pid": rank.pid,
                    "started_s": rank.started_s,
                }

    def _take_step(self, pod: str, record: StepRecord) -> None:
        self.steps.setdefault(record.epoch, {}).setdefault(pod, PodSteps()).add(record)
        if record.epoch >= self._losses.get(record.step, (0, 0.0))[0]:
            self._losses[record.step] = (record.epoch, record.loss)
        self.step = max(self.step, record.step + 1)

    def take_decision(self, decision: Decision, observed: Observed, now: float) -> None:
        """Note when the loop did what."""
        self.phase, self.message, self.epochs = decision.phase, decision.message, observed.epochs
        self.keeps_plan, self.pods = decision.keeps_plan, len(observed.pods)
        is_refused = decision.reason == "CheckpointRefused"
        self.refused_checkpoint = decision.message if is_refused else ""
        self.why_no_plan = decision.message if decision.reason == "InsufficientGPUs" else ""
        self.output_failure = output_failure(observed) if self.phase == "Saving" else ""
        for action in decision.actions:
            match action:
                case RecordEvent() if action.reason == "WorkerLost" and self._halted_s is None:
                    self._halted_s = self._agreed_s = now
                case RecordEvent() if action.reason == "PlanKept":
                    self._refuse(action, observed, now)
                case RequestPlan() if self._halted_s is not None:
                    self._agreed_s = now
                case SealEpoch() if action.seal.restore is not None:
                    self.restores[action.epoch] = action.seal.restore
                case AdoptPlan():
                    self._adopt(action, observed, now)
                case CloseEpoch() if action.outcome == "live":
                    self._halted_s = self._agreed_s = None
                case _:
                    pass

    def stall(self, epoch: int) -> Stall | None:
        """The stall of the switch to an epoch, once its first step has started."""
        record = self._record(epoch)
        times, switches = self.times.get(epoch, EpochTimes()), self.switches.get(epoch, {}).values()
        if record is None:  # a change of long ago
            return measure_stall(switches)
        return stall_of(record, switches, times.agreed_s - times.halted_s)

    def from_kill_s(self, epoch: int) -> float | None:
        """Seconds from the kill that an epoch recovers from to its first step; None: no kill."""
        record, times = self._record(epoch), self.times.get(epoch)
        switches = self.switches.get(epoch, {}).values()
        started = [s.first_step_s for s in switches if s.first_step_s is not None]
        if record is None or record.reason != "loss" or times is None or not started:
            return None
        killed_s = self._killed_s(epoch, times.halted_s)
        return max(started) - killed_s if killed_s is not None else None

    def _record(self, epoch: int) -> EpochRecord | None:
        return next((record for record in self.epochs if record.epoch == epoch), None)

    def _killed_s(self, epoch: int, halted_s: float) -> float | None:
        """The kill that an epoch recovers from: during the last step before it, or after that."""
        before = [e for e in self.steps if e < epoch]
        last_s = self.steps_of(max(before))[-1].start_s if before else 0.0
        kills_s = (each.at_s for each in self.happened if each.event.verb == "kill")
        return max((at_s for at_s in kills_s if last_s <= at_s <= halted_s), default=None)

    def stalls_s(self) -> tuple[float, ...]:
        """Measured stalls of planned moves, oldest first; what the next adoption must pay for."""
        lost = {record.epoch for record in self.epochs if record.reason == "loss"}
        found = (
            self.stall(epoch) for epoch in sorted(self.switches) if epoch > 1 and epoch not in lost
        )
        return tuple(stall.stall_s for stall in found if stall is not None)

    def steps_of(self, epoch: int) -> tuple[StepRecord, ...]:
        """An epoch's first step and its newest ones, as the pod saw them that saw the most."""
        pods = self.steps.get(epoch, {})
        best = max(sorted(pods), key=lambda pod: pods[pod].count, default=None)
        return pods[best].records() if best is not None else ()

    def memory_bytes(self, epoch: int) -> int:
        """The most that a rank held in any step of an epoch; 0: not known."""
        return max((pod.memory_bytes for pod in self.steps.get(epoch, {}).values()), default=0)

    def step_s(self, epoch: int) -> float | None:
        """Median time from start to start of an epoch's newest steps, its first one left out."""
        steps = self.steps_of(epoch)[1:]
        return median_step_s(steps)

    def losses(self) -> tuple[float, ...]:
        """The loss of every step in order; of a step that was trained again, the later one."""
        return tuple(self._losses[step][1] for step in sorted(self._losses))

    def _refuse(self, event: RecordEvent, observed: Observed, now: float) -> None:
        digest = event.key.rsplit("-", 1)[-1]
        reply = next((r for key, r in observed.replies.items() if key.composition == digest), None)
        if reply is None or reply.plan is None or event.key in self.refusals:
            return
        nodes = [n for n in observed.nodes if n.leaving_at_s is None]
        composition = Composition.from_json(
            [
                {"name": n.name, "type": n.gpu_type, "gpus": n.gpus, "link_domain": n.link_domain,
                 "speed_factor": n.speed_factor}
                for n in nodes
            ]
        )  # fmt: skip
        current = reply.current_samples_s or reply.throughput_samples_s
        gain = 100 * (reply.throughput_samples_s / current - 1)
        self.refusals[event.key] = Refused(composition, gain, event.message, now)

    def _adopt(self, action: AdoptPlan, observed: Observed, now: float) -> None:
        times = self.times.setdefault(action.epoch, EpochTimes())
        times.halted_s = self._halted_s or now
        times.agreed_s = self._agreed_s or now
        reply = _reply_for(observed.replies.values(), action.plan)
        if reply is not None:
            self.replies[action.plan.digest] = reply


def median_step_s(steps: Sequence[StepRecord]) -> float | None:
    """Median time from one step's start to the next one's; None with fewer than two steps."""
    pairs = itertools.pairwise(steps)
    times = [b.start_s - a.start_s for a, b in pairs if b.step == a.step + 1]
    return median(times) if times else None


def _reply_for(replies: Iterable[PlanReply], plan: Plan) -> PlanReply | None:
    return next((reply for reply in replies if reply.plan == plan), None)
