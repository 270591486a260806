"""After a loss: wait until the survivors have halted, see what they hold, plan for what is left.

Invariants: no epoch is adopted while a rank of the broken world may still change its state; no pod
is deleted that holds a piece which no halted rank holds.
"""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import named
from heddle_operator.epochs.ending import end_badly, end_by_limit, fail
from heddle_operator.epochs.halting import halt_survivors, silent_members
from heddle_operator.epochs.members import send_directive
from heddle_operator.epochs.restoring import lose
from heddle_operator.rules.adoption.consider import consider_plan
from heddle_operator.rules.coverage import Survivors
from heddle_operator.rules.failures import causes_of
from heddle_operator.rules.limits import beyond_backoff
from heddle_operator.state.actions import (
    Action,
    CloseEpoch,
    DeletePod,
    RecordEvent,
    RelatedObject,
    SendDirective,
)
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.progress import members_with_ranks
from heddle_operator.state.reachability import doubt_left_s, report_of
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import Holder, Situation, View
from heddle_operator.state.snapshot import Observed
from planner.wording import joined

STILL = ("halted", "saving", "suspended", "done")
STEPS_TO_HALT = 3  # of the longest step known: one may just have begun, and it may be a slow one


def recover(view: View, live: EpochRecord) -> Decision:
    """The next step after ranks of the live epoch were lost."""
    observed, settings, situation = view.observed, view.settings, view.situation
    ended = end_badly(live, observed, situation)
    if ended is not None:
        return ended
    survivors = Survivors.of(view.job.workload.model, situation.holders, observed)
    moving = [holder for holder in situation.holders if holder.rank.phase not in STILL]
    if moving:
        return _await_halt(view, live, moving, survivors)
    if situation.doubtful:
        sentence = f"the job waits for an answer of {named('pod', situation.doubtful)}"
        return Decision(
            actions=(),
            phase="Recovering",
            message=sentence,
            look_again_s=doubt_left_s(observed, view.now, settings),
        )
    problem = survivors.problem()
    silent = [m.pod for m in live.ranked if _is_silent(observed, m.pod)]
    silent = silent or silent_members(view, live)
    left_s = _gone_left_s(view, silent) if problem and silent else None
    if problem and silent and (left_s is None or left_s > 0):
        return Decision(
            actions=(),
            phase="Recovering",
            message=f"{problem}, unless pod {silent[0]} answers again",
            look_again_s=left_s,
        )
    if problem and not situation.ever_live:
        return _start_over(live, situation, problem)
    if problem and view.job.spec.checkpoint is not None:
        return lose(view, live, problem)
    if problem:
        return fail(live, "StateLost", f"{problem}, and the job saves no checkpoints")
    event = RecordEvent(f"lost-{live.epoch}", "WorkerLost", joined(map(str, situation.lost)))
    if _will_be_killed(observed, live, settings):
        sentence = f"{situation.lost[0]}; the job waits until its agent has killed it"
        return Decision(
            actions=(event,), phase="Recovering", message=sentence, look_again_s=settings.kill_s / 4
        )
    stopped = _stopped_pods(view, live, survivors)
    if stopped:
        sentence = f"{situation.lost[0]}; the pods that fell silent are deleted"
        return Decision(
            actions=(event, *stopped), phase="Recovering", message=sentence, look_again_s=1.0
        )
    planned = _plan_on(view, survivors)
    return replace(planned, actions=(event, *_gpu_events(situation), *planned.actions))


def _plan_on(view: View, survivors: Survivors) -> Decision:
    """A plan for what is left, unless too many recoveries came to nothing."""
    resume = survivors.resume()
    beyond = beyond_backoff(view.job, view.observed.epochs, resume.step if resume else None)
    if beyond:
        return end_by_limit("BackoffLimitExceeded", beyond, view.observed)
    return consider_plan(view)


def _await_halt(
    view: View, live: EpochRecord, moving: list[Holder], survivors: Survivors
) -> Decision:
    """Let every rank halt; only one that nobody needs may be taken for stuck and deleted."""
    observed, situation = view.observed, view.situation
    names = sorted({holder.pod for holder in moving})
    given_up: tuple[Action, ...] = (
        *_stall_event(live, situation),
        *halt_survivors(live.epoch, names, str(situation.lost[0])),
        *_give_up(view.job, live, observed),
    )
    ranks = f"the ranks of {named('pod', names)}"
    since_s = view.now if observed.recovering_since_s is None else observed.recovering_since_s
    left_s = since_s + _halt_s(live, observed, view.settings) - view.now
    if left_s > 0:
        sentence = f"{situation.lost[0]}; the job waits until {ranks} halt"
        return Decision(actions=given_up, phase="Recovering", message=sentence, look_again_s=left_s)
    needed = survivors.problem(names)
    if needed:
        sentence = f"{ranks} did not halt and are kept: without them, {needed}"
        pod = RelatedObject("Pod", names[0])
        event = RecordEvent(f"stuck-{live.epoch}", "RankStuck", sentence, pod)
        return Decision(
            actions=(event, *given_up), phase="Recovering", message=sentence, reason="RankStuck"
        )
    deleted = tuple(DeletePod(pod, "its ranks did not halt") for pod in names)
    return Decision(
        actions=deleted,
        phase="Recovering",
        message=f"{ranks} did not halt and are deleted",
        look_again_s=1.0,
    )


def _stall_event(live: EpochRecord, situation: Situation) -> tuple[RecordEvent, ...]:
    if not situation.is_stalled:
        return ()
    words = situation.lost[0].words
    return (RecordEvent(f"hang-{live.epoch}", "ProgressDeadlineExceeded", words),)


def _gpu_events(situation: Situation) -> tuple[RecordEvent, ...]:
    return tuple(
        RecordEvent(
            f"gpu-{failure.epoch}-{node}-{gpu}",
            "GPUFailed",
            f"GPU {gpu} of node {node} failed and is left out for some time: {failure.sentence}",
            RelatedObject("Node", node),
        )
        for failure in causes_of(situation)
        for node, gpu in failure.gpus
        if failure.kind == "device"
    )


def _give_up(job: HeddleJob, live: EpochRecord, observed: Observed) -> tuple[SendDirective, ...]:
    """Tell ranks that still wait to form the broken world to stop waiting for the lost one."""
    if live.outcome != "open" or live.seal is None:
        return ()
    reports = [report_of(observed, pod) for pod in sorted(live.seal.pods)]
    waiting = [
        report.pod
        for report in reports
        if report is not None and report.epoch == live.epoch and report.phase == "switch"
    ]
    return send_directive(job, live, "abort", observed, waiting)


def _will_be_killed(observed: Observed, live: EpochRecord, settings: Settings) -> bool:
    """Whether a rank just fell silent whose agent answers: it kills the process, and keeps the pod.

    A new rank can then take its GPU, and the others of the pod stay.
    """
    ranks = (rank for _, rank in members_with_ranks(observed, live))
    latest_s = settings.peer_timeout_s + settings.kill_s
    return any(settings.peer_timeout_s < rank.beat_age_s <= latest_s for rank in ranks)


def _stopped_pods(view: View, live: EpochRecord, survivors: Survivors) -> tuple[DeletePod, ...]:
    """Pods that fell silent, or have a rank that did: a stopped process keeps its GPU.

    A pod stays while other ranks in it alone hold a part of the state.
    """
    found = []
    for name in silent_members(view, live):
        pod = view.observed.pod(name)
        is_needed = bool(survivors.lost_piece((name,)))
        if pod is not None and not pod.deleting and not is_needed:
            found.append(DeletePod(name, "it fell silent, and the others hold the whole state"))
    return tuple(found)


def _halt_s(live: EpochRecord, observed: Observed, settings: Settings) -> float:
    """How long ranks may take to notice: one that computes hears of a loss only when it talks."""
    reports = [agent.report for agent in observed.agents.values() if agent.report is not None]
    steps_s = [step.end_s - step.start_s for report in reports for step in report.steps]
    longest_s = max([*steps_s, live.step_s or 0.0])
    return max(settings.halt_timeout_s, STEPS_TO_HALT * longest_s)


def _start_over(live: EpochRecord, situation: Situation, problem: str) -> Decision:
    """No step was committed and the seed gives the same state again: begin anew with fresh pods."""
    actions: list[Action] = [
        DeletePod(pod, "the start failed")
        for pod in sorted({holder.pod for holder in situation.holders})
    ]
    if live.outcome != "aborted":
        actions.append(CloseEpoch(epoch=live.epoch, outcome="aborted", message=problem))
    return Decision(
        actions=tuple(actions),
        phase="Pending",
        message=f"the start failed: {problem}",
        look_again_s=1.0,
    )


def _gone_left_s(view: View, silent: list[str]) -> float | None:
    """Seconds until silent pods are taken for gone with their nodes; None: they may be there yet.

    Where a node answers, the operator alone may be cut off from ranks that train on.
    """
    observed, left = view.observed, [0.0]
    for name in silent:
        pod, agent = observed.pod(name), observed.agents.get(name)
        node = observed.node(pod.node) if pod is not None else None
        if node is None or node.is_ready or agent is None or agent.unreachable_since_s is None:
            return None
        left.append(agent.unreachable_since_s + view.settings.node_gone_s - view.now)
    return max(left) if view.job.spec.checkpoint is not None else None


def _is_silent(observed: Observed, name: str) -> bool:
    """A pod that runs, as far as the cluster knows, but whose agent does not answer."""
    pod = observed.pod(name)
    return pod is not None and pod.phase == "running" and name not in observed.reports
