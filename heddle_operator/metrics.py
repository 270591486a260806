"""What the operator tells Prometheus.

Invariant: few labels; a job that is gone leaves no series behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from heddle_operator.actions import AdoptPlan, CloseEpoch, RecordEvent
from heddle_operator.decision import Decision

JOB = ("namespace", "job")
PARTS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class OperatorMetrics:
    """The operator's series, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges = {
            key: Gauge(name, text, JOB, registry=self.registry)
            for key, name, text in (
                ("epoch", "heddle_job_epoch", "Epoch that trains"),
                ("activeGPUs", "heddle_job_active_gpus", "GPUs of the running plan"),
                ("usableGPUs", "heddle_job_usable_gpus", "GPUs that the job may use"),
                ("grantedGPUs", "heddle_job_granted_gpus", "GPUs that the job's pods hold"),
                ("step", "heddle_job_step", "Completed steps"),
                ("loss", "heddle_job_loss", "Loss of the newest step"),
                ("minNodes", "heddle_job_holders_min", "Nodes that every piece lives on, at least"),
            )
        }
        self._phase = Gauge(
            "heddle_job_phase", "1 for the job's phase", (*JOB, "phase"), registry=self.registry
        )
        self._decisions = Counter(
            "heddle_decisions_total",
            "Plans that were adopted, kept, recommended or given up",
            (*JOB, "reason"),
            registry=self.registry,
        )
        self._stall = Histogram(
            "heddle_reconfiguration_seconds",
            "Stall of a change of plan",
            JOB,
            buckets=PARTS_S,
            registry=self.registry,
        )
        self.is_leader = Gauge(
            "heddle_operator_is_leader", "1 while this operator decides", registry=self.registry
        )
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}

    def take(self, namespace: str, job: str, status: Mapping[str, Any], decision: Decision) -> None:
        """Take over a job's status and what was decided."""
        flat = {**status, **status.get("progress", {}), **status.get("holders", {})}
        for key, gauge in self._gauges.items():
            if isinstance(flat.get(key), int | float):
                gauge.labels(namespace, job).set(flat[key])
        before, stalled = self._seen.get((namespace, job), ("", 0))
        if before and before != decision.phase:
            self._phase.remove(namespace, job, before)
        self._phase.labels(namespace, job, decision.phase).set(1)
        for action in decision.actions:
            match action:
                case AdoptPlan():
                    self._decisions.labels(namespace, job, action.reason).inc()
                case CloseEpoch(outcome="aborted"):
                    self._decisions.labels(namespace, job, "aborted").inc()
                case RecordEvent(reason="PlanKept"):
                    self._decisions.labels(namespace, job, "kept").inc()
                case _:
                    pass
        last = status.get("lastReconfiguration")
        if last and last["epoch"] > stalled:
            self._stall.labels(namespace, job).observe(last["stallSeconds"])
            stalled = last["epoch"]
        self._seen[namespace, job] = (decision.phase, stalled)

    def forget(self, namespace: str, job: str) -> None:
        """The job is gone."""
        phase, _ = self._seen.pop((namespace, job), ("", 0))
        if phase:
            self._phase.remove(namespace, job, phase)
        for gauge in self._gauges.values():
            gauge.remove(namespace, job)

    def text(self) -> bytes:
        """All series, as Prometheus reads them."""
        return generate_latest(self.registry)
