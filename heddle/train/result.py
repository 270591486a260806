"""The result of a run as plain data: what ran, what it cost, and whether it was exact.

Invariant: every number was measured in this run or is named as predicted; nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from heddle.train.recorder import Recorder
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.state.epoch_record import EpochRecord
from planner.cost.evaluate import cost_of
from planner.cost.simulation import simulated_seconds
from planner.plans.pieces import holders_min
from planner.profiles.profile import Profile
from worker.contract import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Figures that only the run itself knows.

    Attributes:
        restart_s: from spawning the first pods to the first step: what a cold restart costs.
        reference_losses: of the same steps in one process of plain torch; None: not compared.
        orphan_processes: of this run that were left after its end, counted from outside.
        engine: what trained.
        seed: of the search and the training.
        evaluations: limit of the search; None: its seconds ended it.
        emulated: step times are those of devices that are not there.
    """

    restart_s: float | None
    reference_losses: Sequence[float] | None
    orphan_processes: int
    engine: str
    seed: int
    evaluations: int | None
    emulated: bool


def build_result(
    job: HeddleJob, recorder: Recorder, profile: Profile, facts: RunFacts
) -> dict[str, Any]:
    """The JSON object of `--output json`."""
    losses = recorder.losses()
    lived = [record for record in recorder.epochs if recorder.steps_of(record.epoch)]
    return {
        "job": job.name,
        "phase": recorder.phase,
        "message": recorder.message,
        "seed": facts.seed,
        "budget_evaluations": facts.evaluations,
        "epochs": [
            _epoch(job, recorder, profile, facts, lived[i - 1] if i else None, record)
            for i, record in enumerate(lived)
        ],
        "refusals": [
            {
                "composition": refused.composition.to_json(),
                "gain_percent": refused.gain_percent,
                "reason": refused.reason,
            }
            for refused in recorder.refusals.values()
        ],
        "processes": [
            {"epoch": epoch, "ranks": [ranks[rank] for rank in sorted(ranks)]}
            for epoch, ranks in sorted(recorder.processes.items())
        ],
        "model": job.workload.model.name,
        "losses": list(losses),
        "held_out": [
            {"step": step, "loss": recorder.evaluations[step].loss}
            for step in sorted(recorder.evaluations)
        ],
        **_comparison(losses, facts.reference_losses),
        "checkpoint_reads": _other_reads(recorder, lived),
        "orphan_processes": facts.orphan_processes,
        "overruns": recorder.overruns,
        "engine": facts.engine,
        "emulated": facts.emulated,
        "profile_origin": profile.origin,
    }


def _comparison(losses: Sequence[float], reference: Sequence[float] | None) -> dict[str, Any]:
    if reference is None:
        return {}
    differences = [abs(a - b) for a, b in zip(losses, reference, strict=False)]
    return {
        "reference_losses": list(reference),
        "max_loss_difference": max(differences, default=None),
    }


def _epoch(
    job: HeddleJob,
    recorder: Recorder,
    profile: Profile,
    facts: RunFacts,
    before: EpochRecord | None,
    record: EpochRecord,
) -> dict[str, Any]:
    steps = recorder.steps_of(record.epoch)
    workload = job.workload
    priced = cost_of(record.plan, workload, record.composition, profile)
    return {
        "epoch": record.epoch,
        "reason": record.reason,
        "plan": record.plan.to_json(),
        "composition": record.composition.to_json(),
        "gpus": record.plan.gpus,
        "holders_min": holders_min(workload.model, record.plan),
        "first_step": steps[0].step,
        "last_step": steps[-1].step,
        "step_s": recorder.step_s(record.epoch),
        "predicted_step_s": simulated_seconds(priced),
        "formula_step_s": priced.iteration_s,
        "measured": _measured(steps, recorder.memory_bytes(record.epoch)),
        "predicted_memory_bytes": priced.peak_memory_bytes,
        "reconfiguration": _reconfiguration(recorder, facts, before, record) if before else None,
    }


def _measured(steps: Sequence[StepRecord], memory_bytes: int) -> dict[str, float]:
    """Medians over an epoch's newest steps, its first one left out; of the memory the most."""
    later = steps[1:] or steps
    names = ("tokens_per_s", "mfu", "forward_s", "backward_s", "waiting_s", "sync_s")
    found = {name: [v for s in later if (v := getattr(s, name)) is not None] for name in names}
    medians = {name: median(values) for name, values in found.items() if values}
    return medians | ({"memory_bytes": memory_bytes} if memory_bytes else {})


def _reconfiguration(
    recorder: Recorder, facts: RunFacts, before: EpochRecord, record: EpochRecord
) -> dict[str, Any]:
    switches = tuple(recorder.switches.get(record.epoch, {}).values())
    stall = recorder.stall(record.epoch)
    resumed = max((switch.step for switch in switches), default=0)
    trained = max((step.step + 1 for step in recorder.steps_of(before.epoch)), default=0)
    return {
        "stall_s": stall.stall_s if stall else None,
        "parts": dict(stall.parts) if stall else None,
        "from_kill_s": recorder.from_kill_s(record.epoch),
        "restart_s": facts.restart_s,
        "bytes_moved": sum(switch.bytes_received for switch in switches),
        "bytes_minimum": sum(switch.bytes_needed for switch in switches),
        "bytes_spread": sum(switch.bytes_spread for switch in switches),
        "steps_lost": max(0, trained - resumed),
        "state_digest_before": _agreed({s.state_digest_before for s in switches}),
        "state_digest_after": _agreed({s.state_digest_after for s in switches}),
    }


def _agreed(digests: set[str | None]) -> str | None:
    """The digest that all ranks which know one agree on; None if they do not."""
    known = digests - {None}
    return known.pop() if len(known) == 1 else None


def _other_reads(recorder: Recorder, lived: Sequence[EpochRecord]) -> int:
    """Ranks that got fewer bytes from peers than they lacked, so that some came from elsewhere."""
    return sum(
        switch.bytes_received < switch.bytes_needed
        for record in lived[1:]
        for switch in recorder.switches.get(record.epoch, {}).values()
    )
