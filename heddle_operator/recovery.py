"""After a loss: wait until the survivors have halted, see what they hold, plan for what is left.

Invariant: no epoch is adopted while a rank of the broken world may still change its state.
Source: design, section 4 "Recover", "Blocked survivors".
"""

from __future__ import annotations

from heddle_operator.actions import Action, CloseEpoch, DeletePod, RecordEvent
from heddle_operator.adoption import consider_plan
from heddle_operator.api import HeddleJob
from heddle_operator.decision import Decision
from heddle_operator.eligibility import is_reachable
from heddle_operator.holdings import lost_piece
from heddle_operator.settings import Settings
from heddle_operator.situation import Situation
from heddle_operator.snapshot import EpochRecord, Observed
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
        since_s = now if observed.recovering_since_s is None else observed.recovering_since_s
        left = since_s + _halt_s(observed, settings) - now
        if left > 0:
            names = ", ".join(sorted({holder.pod for holder in moving}))
            return Decision((), "Recovering", f"{where.lost[0]}; waiting until {names} halt", left)
        stuck = sorted({holder.pod for holder in moving})
        return Decision(
            tuple(DeletePod(pod, "its ranks did not halt") for pod in stuck),
            "Recovering",
            f"{stuck[0]} is stuck",
            1.0,
        )
    if where.doubtful:
        return Decision(
            (), "Recovering", f"waiting for {where.doubtful[0]}", settings.unreachable_grace_s
        )
    problem = lost_piece(job.workload.model, where.holders, observed)
    if not problem and all(holder.rank.phase == "done" for holder in where.holders):
        return Decision((CloseEpoch(live.epoch, "complete"),), "Complete", "all steps are trained")
    if not problem and resume_of([holder.rank for holder in where.holders]) is None:
        problem = "the survivors stand at steps that cannot be joined"
    silent = [m.pod for m in live.seal.members if _is_silent(observed, m.pod)] if live.seal else []
    if problem and silent:
        return Decision((), "Recovering", f"{problem}, unless {silent[0]} answers again")
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
    return Decision((event, *planned.actions), planned.phase, planned.reason, planned.look_again_s)


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
