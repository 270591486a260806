"""After a loss: wait until the survivors have halted, see what they hold, plan for what is left.

Invariants: no epoch is adopted while a rank of the broken world may still change its state; no pod
is deleted that holds a piece which no halted rank holds.
Source: design, section 4 "Recover", "Blocked survivors".
"""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import named
from heddle_operator.policy.adoption import consider_plan
from heddle_operator.policy.coverage import NO_COMMON_STEP, lost_piece
from heddle_operator.rollout.members import directive_of
from heddle_operator.state.actions import Action, CloseEpoch, DeletePod, RecordEvent, SendDirective
from heddle_operator.state.decision import Decision
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import Holder, Situation, is_reachable, report_of
from heddle_operator.state.snapshot import EpochRecord, Observed
from worker.contract import resume_of

STILL = ("halted", "done")
STEPS_TO_HALT = 3  # of the longest step known: one may just have begun, and it may be a slow one


def recover(
    job: HeddleJob,
    live: EpochRecord,
    observed: Observed,
    now: float,
    where: Situation,
    settings: Settings,
) -> Decision:
    """The next step after ranks of the live epoch were lost."""
    moving = [holder for holder in where.holders if holder.rank.phase not in STILL]
    if moving:
        return _await_halt(job, live, moving, observed, now, where, settings)
    if where.doubtful:
        reason = f"the job waits for an answer of {named('pod', where.doubtful)}"
        return Decision((), "Recovering", reason, settings.unreachable_grace_s)
    problem = lost_piece(job.workload.model, where.holders, observed)
    if not problem and all(holder.rank.phase == "done" for holder in where.holders):
        return Decision((CloseEpoch(live.epoch, "complete"),), "Complete", "all steps are trained")
    if not problem and resume_of([holder.rank for holder in where.holders]) is None:
        problem = NO_COMMON_STEP
    silent = [m.pod for m in live.seal.members if _is_silent(observed, m.pod)] if live.seal else []
    if problem and silent:
        return Decision((), "Recovering", f"{problem}, unless pod {silent[0]} answers again")
    if problem and not where.ever_live:
        return _start_over(live, where, problem)
    if problem:
        event = RecordEvent(f"failed-{live.epoch}", "StateLost", problem)
        return Decision(
            (CloseEpoch(live.epoch, "failed", f"StateLost: {problem}"), event),
            "Failed",
            f"StateLost: {problem}",
        )
    event = RecordEvent(f"lost-{live.epoch}", "WorkerLost", "; ".join(where.lost))
    planned = consider_plan(job, observed, now, where, settings)
    return replace(planned, actions=(event, *planned.actions))


def _await_halt(
    job: HeddleJob,
    live: EpochRecord,
    moving: list[Holder],
    observed: Observed,
    now: float,
    where: Situation,
    settings: Settings,
) -> Decision:
    """Let every rank halt; only one that nobody needs may be taken for stuck and deleted."""
    given_up = _give_up(job, live, observed)
    names = sorted({holder.pod for holder in moving})
    ranks = f"the ranks of {named('pod', names)}"
    since_s = now if observed.recovering_since_s is None else observed.recovering_since_s
    left = since_s + _halt_s(observed, settings) - now
    if left > 0:
        reason = f"{where.lost[0]}; the job waits until {ranks} halt"
        return Decision(given_up, "Recovering", reason, left)
    others = tuple(holder for holder in where.holders if holder.pod not in names)
    needed = lost_piece(job.workload.model, others, observed)
    if needed or resume_of([holder.rank for holder in others]) is None:
        needed = needed or NO_COMMON_STEP
        reason = f"{ranks} did not halt and are kept: without them, {needed}"
        event = RecordEvent(f"stuck-{live.epoch}", "RankStuck", reason)
        return Decision((event, *given_up), "Recovering", reason)
    deleted = tuple(DeletePod(pod, "its ranks did not halt") for pod in names)
    return Decision(deleted, "Recovering", f"{ranks} did not halt and are deleted", 1.0)


def _give_up(job: HeddleJob, live: EpochRecord, observed: Observed) -> tuple[SendDirective, ...]:
    """Tell ranks that still wait to form the broken world to stop waiting for the lost one."""
    if live.outcome != "open" or live.seal is None:
        return ()
    directive = directive_of(job, live, "abort", observed)
    reports = [report_of(observed, pod) for pod in sorted({m.pod for m in live.seal.members})]
    return tuple(
        SendDirective(report.pod, directive)
        for report in reports
        if report is not None and report.epoch == live.epoch and report.phase == "switch"
    )


def _halt_s(observed: Observed, settings: Settings) -> float:
    """How long ranks may take to notice: one that computes hears of a loss only when it talks."""
    reports = [view.report for view in observed.agents.values() if view.report is not None]
    steps_s = [step.end_s - step.start_s for report in reports for step in report.steps]
    return max([settings.halt_timeout_s, *(STEPS_TO_HALT * step_s for step_s in steps_s)])


def _start_over(live: EpochRecord, where: Situation, problem: str) -> Decision:
    """No step was committed and the seed gives the same state again: begin anew with fresh pods."""
    actions: list[Action] = [
        DeletePod(pod, "the start failed")
        for pod in sorted({holder.pod for holder in where.holders})
    ]
    if live.outcome != "aborted":
        actions.append(CloseEpoch(live.epoch, "aborted", problem))
    return Decision(tuple(actions), "Pending", f"the start failed: {problem}", 1.0)


def _is_silent(observed: Observed, name: str) -> bool:
    """A pod that runs, as far as the cluster knows, but whose agent does not answer."""
    pod, view = observed.pod(name), observed.agents.get(name)
    return pod is not None and pod.phase == "running" and not is_reachable(pod, view)
