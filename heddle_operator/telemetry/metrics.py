"""Metrics of the operator for Prometheus.

Invariant: few labels; a job that is gone leaves no series behind; of jobs the leader alone tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from heddle_operator.apis.times import wall_s
from heddle_operator.state.actions import Action, AdoptPlan, CloseEpoch, RecordEvent
from heddle_operator.state.decision import Decision
from heddle_operator.state.recent import Recent

JOB = ("namespace", "job")
PARTS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
JOB_GAUGES = (  # key of what a status tells, metric, help
    ("epoch", "heddle_job_epoch", "Epoch that trains"),
    ("activeGPUs", "heddle_job_active_gpus", "GPUs of the running plan"),
    ("usableGPUs", "heddle_job_usable_gpus", "GPUs that the job may use"),
    ("grantedGPUs", "heddle_job_granted_gpus", "GPUs that the job's pods hold"),
    ("step", "heddle_job_step", "Completed steps"),
    ("loss", "heddle_job_loss", "Loss of the newest step"),
    ("gradientNorm", "heddle_job_gradient_norm", "Norm of the newest step's gradient"),
    ("learningRate", "heddle_job_learning_rate", "Learning rate of the newest step"),
    ("lossScale", "heddle_job_loss_scale", "Loss scale of the newest step"),
    ("tokensPerSecond", "heddle_job_tokens_per_second", "Tokens of a second"),
    ("mfu", "heddle_job_mfu", "Share of the GPUs' peak that the model uses"),
    ("memoryBytes", "heddle_job_memory_bytes", "Most bytes that a rank has held"),
    (
        "predictedMemoryBytes",
        "heddle_job_predicted_memory_bytes",
        "Most bytes that a GPU of the plan is to hold, by the planner",
    ),
    (
        "savedStep",
        "heddle_job_checkpoint_step",
        "Steps of the newest checkpoint",
    ),
    (
        "savedSeconds",
        "heddle_job_checkpoint_seconds",
        "From the boundary of its step until it was whole",
    ),
    ("savedBytes", "heddle_job_checkpoint_bytes", "Bytes of the newest checkpoint"),
    (
        "savedStallSeconds",
        "heddle_job_checkpoint_stall_seconds",
        "Longest that a rank stood still for it",
    ),
    (
        "savedAt",
        "heddle_job_checkpoint_timestamp_seconds",
        "Unix time at which it was whole",
    ),
    ("lostSteps", "heddle_job_lost_steps", "Steps lost at starts from checkpoints"),
    ("minNodes", "heddle_job_holders_min", "Nodes that every piece lives on, at least"),
)
_OF_A_PLAN = ("predictedMemoryBytes", "minNodes")  # no numbers while the job has none
TURNS_S = (0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60)


class OperatorMetrics:
    """The operator's series, in registries of their own: of itself, and of jobs.

    Args:
        version: of Heddle.
        commit: of its sources; "": not known.
    """

    def __init__(self, version: str = "", commit: str = "") -> None:
        self.registry, self.jobs = CollectorRegistry(), CollectorRegistry()
        self._gauges = {
            key: Gauge(name, text, JOB, registry=self.jobs) for key, name, text in JOB_GAUGES
        }
        self._phase = Gauge(
            "heddle_job_phase", "1 for the job's phase", (*JOB, "phase"), registry=self.jobs
        )
        self._type_speed = Gauge(
            "heddle_job_type_speed",
            "Speed of a GPU type beside its profile, where they differ",
            (*JOB, "gpu_type"),
            registry=self.jobs,
        )
        self._decisions = Counter(
            "heddle_decisions_total",
            "Plans that were adopted, kept, recommended or given up",
            (*JOB, "reason"),
            registry=self.jobs,
        )
        self._stall = Histogram(
            "heddle_reconfiguration_seconds",
            "Stall of a change of plan, from the end of the last old step, of a loss too",
            JOB,
            buckets=PARTS_S,
            registry=self.jobs,
        )
        self._loop_blocked, self._loop_cpu, self._decision, self._planning = (
            Histogram(name, text, buckets=buckets, registry=self.registry)
            for name, text, buckets in (
                ("heddle_loop_blocked_seconds", "Turn of the event loop", TURNS_S),
                ("heddle_loop_cpu_seconds", "CPU time of a turn of the event loop", TURNS_S),
                (
                    "heddle_decision_seconds",
                    "From a change that concerns a job to the decision on it",
                    TURNS_S,
                ),
                (
                    "heddle_planning_seconds",
                    "Search of a plan and the wait for its turn",
                    PARTS_S,
                ),
            )
        )
        Gauge(
            "heddle_build_info",
            "1 for the version and the commit of this operator",
            ("version", "commit"),
            registry=self.registry,
        ).labels(version, commit).set(1)
        self._is_leader = Gauge(
            "heddle_operator_is_leader", "1 while this operator decides", registry=self.registry
        )
        self._denied = Gauge(
            "heddle_denied_collections",
            "Collections that the API server does not let this operator read",
            registry=self.registry,
        )
        self._leads = False
        self._seen: dict[tuple[str, str], _Seen] = {}

    def lead(self) -> None:
        """This operator decides from now on."""
        self._leads = True
        self._is_leader.set(1)

    def rest(self) -> None:
        """This operator decides no more."""
        self._leads = False
        self._is_leader.set(0)

    def denied(self, count: Callable[[], int]) -> None:
        """Count the collections that may not be read whenever somebody asks."""
        self._denied.set_function(count)

    def take(self, namespace: str, job: str, status: Mapping[str, Any], decision: Decision) -> None:
        """Take over a job's status.

        Args:
            namespace: of the job.
            job: its name.
            status: as it is written.
            decision: with the actions that were done.
        """
        parts = [status.get(part, {}) for part in ("progress", "holders", "plan")]
        gone = _OF_A_PLAN if status.get("plan", {}) is None else ()
        flat = {**status, **dict.fromkeys(gone)}
        flat |= {key: value for part in parts if part for key, value in part.items()}
        flat |= _of_checkpoint(status.get("checkpoint") or {})
        for key, gauge in self._gauges.items():
            if isinstance(flat.get(key), int | float):
                gauge.labels(namespace, job).set(flat[key])
            elif key in flat:
                gauge.labels(namespace, job).set(math.nan)
        seen = self.phase(namespace, job, decision.phase)
        self._take_speeds(namespace, job, status.get("typeSpeeds") or {}, seen)
        for key, reason in filter(None, map(_counted, decision.actions)):
            if seen.counted.add(key):
                seen.reasons.add(reason)
                self._decisions.labels(namespace, job, reason).inc()
        last = status.get("lastReconfiguration")
        if last and last["epoch"] > seen.stalled_epoch:
            self._stall.labels(namespace, job).observe(last["stallSeconds"])
            seen.stalled_epoch = last["epoch"]

    def phase(self, namespace: str, job: str, phase: str) -> _Seen:
        """Take over the phase of a job; answers what is remembered of it."""
        seen = self._seen.setdefault((namespace, job), _Seen())
        if seen.phase and seen.phase != phase:
            self._phase.remove(namespace, job, seen.phase)
        seen.phase = phase
        self._phase.labels(namespace, job, phase).set(1)
        return seen

    def _take_speeds(
        self, namespace: str, job: str, told: Mapping[str, float | None], seen: _Seen
    ) -> None:
        speeds = {name: speed for name, speed in told.items() if speed is not None}
        for name in seen.types - speeds.keys():
            self._type_speed.remove(namespace, job, name)
        seen.types = set(speeds)
        for name, speed in speeds.items():
            self._type_speed.labels(namespace, job, name).set(speed)

    def forget(self, namespace: str, job: str) -> None:
        """The job is gone."""
        seen = self._seen.pop((namespace, job), None)
        if seen is None:
            return
        self._phase.remove(namespace, job, seen.phase)
        for reason in seen.reasons:
            self._decisions.remove(namespace, job, reason)
        for gpu_type in seen.types:
            self._type_speed.remove(namespace, job, gpu_type)
        for series in (*self._gauges.values(), self._stall):
            series.remove(namespace, job)

    def turn(self, blocked_s: float, cpu_s: float) -> None:
        """The event loop has worked so long without a look at what happened."""
        self._loop_blocked.observe(blocked_s)
        self._loop_cpu.observe(cpu_s)

    def decided(self, since_change_s: float) -> None:
        """A job was decided on, so long after the first change that concerned it."""
        self._decision.observe(since_change_s)

    def planned(self, seconds: float) -> None:
        """A search of a plan was answered after so long."""
        self._planning.observe(seconds)

    def text(self) -> bytes:
        """All series, as Prometheus reads them."""
        own = generate_latest(self.registry)
        return own + generate_latest(self.jobs) if self._leads else own


@dataclass(slots=True)
class _Seen:
    """Metrics of one job.

    Attributes:
        counted: keys of decisions.
        reasons: of all of them, a handful.
        types: GPU types whose speed differs from their profile.
    """

    phase: str = ""
    stalled_epoch: int = 0
    counted: Recent[str] = field(default_factory=Recent)
    reasons: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)


def _of_checkpoint(saved: Mapping[str, Any]) -> dict[str, float]:
    """Figures of the newest checkpoint, by the keys of their gauges."""
    names = {
        "savedStep": "step",
        "savedSeconds": "seconds",
        "savedBytes": "bytes",
        "savedStallSeconds": "stallSeconds",
        "lostSteps": "lostSteps",
    }
    found = {key: saved[name] for key, name in names.items() if saved.get(name) is not None}
    if "savedAt" in saved:
        found["savedAt"] = wall_s(saved["savedAt"])
    return found


def _counted(action: Action) -> tuple[str, str] | None:
    """Key and reason of a decision about a plan; what is decided again is the same decision."""
    match action:
        case AdoptPlan():
            return f"adopted-{action.epoch}", action.reason
        case CloseEpoch(outcome="aborted"):
            return f"aborted-{action.epoch}", "aborted"
        case RecordEvent(reason="PlanKept"):
            return action.key, "kept"
        case RecordEvent(reason="PlanRecommended"):
            return action.key, "recommended"
        case _:
            return None
