"""The pure core: what to do for a job, given one picture of its cluster.

Total (an answer for every Observed), deterministic, level-triggered: it remembers nothing, so an
operator that starts anew goes on where the last one stopped, and a missed event costs time, never
correctness.
Source: Kubernetes' controllers.
"""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.epochs.ending import TRAINED, end_by_limit, end_well
from heddle_operator.epochs.formation import abort_stale, form_epoch
from heddle_operator.epochs.halting import halt_stranded
from heddle_operator.epochs.history_limit import prune_epochs
from heddle_operator.epochs.members import send_directive
from heddle_operator.epochs.recovery import recover
from heddle_operator.epochs.release import (
    end_pods,
    failed_pods,
    give_back,
    leaving_events,
    release_pods,
    silent_pods,
    stuck_pods,
)
from heddle_operator.epochs.saving import save_now
from heddle_operator.epochs.suspension import suspend
from heddle_operator.rules.adoption.consider import consider_plan
from heddle_operator.rules.drain import request_drain_plan
from heddle_operator.rules.limits import beyond_backoff, deadline_left_s, past_deadline
from heddle_operator.rules.partitions import outdated_pods
from heddle_operator.state.actions import Action, AdoptPlan, CloseEpoch
from heddle_operator.state.decision import Decision, Phase, sooner
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.progress import progress_timeout_s, slow_ranks
from heddle_operator.state.reachability import doubt_left_s, report_of
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed


def decide(view: View) -> Decision:
    """Decide what to do now."""
    settings = view.settings
    observed, where = view.observed, view.situation
    ended = next(
        (record for record in observed.epochs if record.outcome in ("complete", "failed")), None
    )
    if ended is not None:
        complete = ended.outcome == "complete"
        message = ended.message or (TRAINED if complete else "")
        ends, again = end_pods(view, ended)
        phase: Phase = "Complete" if complete else "Failed"
        return Decision(
            actions=ends, phase=phase, message=message, look_again_s=again, reason=ended.failed
        )
    decision = _next_step(view)
    tidy = _tidy(view) if where.unread is None else ()
    slow = decision.slow
    watched_s = None
    if where.live is not None and decision.phase not in ("Complete", "Failed"):
        slow = slow or slow_ranks(observed, where.pending or where.live, settings)
        watched_s = progress_timeout_s(where.live, settings)
    return replace(
        decision,
        actions=(*tidy, *decision.actions),
        look_again_s=sooner(
            decision.look_again_s,
            doubt_left_s(observed, view.now, settings),
            watched_s,
            deadline_left_s(view) if decision.phase != "Failed" else None,
        ),
        slow=slow,
    )


def _tidy(view: View) -> tuple[Action, ...]:
    """Actions beside the next step."""
    observed, where = view.observed, view.situation
    stranded = halt_stranded(view)
    return (
        *leaving_events(observed, where),
        *failed_pods(observed, where),
        *stuck_pods(observed),
        # Until the ranks that wait for it have halted, it must be known that a pod is silent.
        *(stranded or silent_pods(view)),
        *outdated_pods(observed, where),
        *abort_stale(view),
        *prune_epochs(view),
        *request_drain_plan(view),
        *save_now(view),
    )


def _next_step(view: View) -> Decision:
    observed, situation = view.observed, view.situation
    ended = None
    if situation.live is not None:
        ended = end_well(view, view.job.spec, situation.live)
    overdue = past_deadline(view)
    if overdue and (ended is None or ended.phase != "Complete"):
        return end_by_limit("DeadlineExceeded", overdue, observed)
    if ended is not None:
        return ended
    held = _keep_unread(view) or suspend(view)
    if held is not None:
        return held
    if situation.pending is not None:
        return form_epoch(view, situation.pending)
    if situation.live is None:
        return _start(view)
    if situation.lost:
        return recover(view, situation.live)
    phases = _phases(situation.live, observed)
    if situation.live.outcome != "live":
        return _finish_switch(view, situation.live, phases)
    planned = consider_plan(view)
    if any(isinstance(action, AdoptPlan) for action in planned.actions):
        return planned  # the new plan may want the pods that the live one leaves idle
    keeps = planned.keeps_plan
    released, wait = release_pods(view, situation.live, keeps)
    return replace(
        planned,
        actions=(*planned.actions, *released),
        look_again_s=sooner(planned.look_again_s, wait),
    )


def _keep_unread(view: View) -> Decision | None:
    """Nothing is done to ranks whose layout nobody knows: their state is the newest."""
    epoch = view.situation.unread
    if epoch is None:
        return None
    words = f"the record of epoch {epoch} cannot be read; the pods that hold it stay as they are"
    return Decision(actions=(), phase="Running", message=words, reason="RecordUnread")


def _start(view: View) -> Decision:
    """The first plan of a job, or the first after it went back to a checkpoint."""
    beyond = beyond_backoff(view.job, view.observed.epochs)
    if beyond:
        return end_by_limit("BackoffLimitExceeded", beyond, view.observed)
    planned = consider_plan(view)
    return replace(planned, actions=(*planned.actions, *give_back(view.observed, planned)))


def _finish_switch(view: View, live: EpochRecord, phases: set[str]) -> Decision:
    """Some ranks hold the new epoch, so the vote has passed: once all do, write that it is live."""
    if phases <= {"training", "saving", "suspending", "suspended", "done"}:
        return Decision(
            actions=(CloseEpoch(epoch=live.epoch, outcome="live"),),
            phase="Running",
            message=f"epoch {live.epoch} is live",
        )
    members = live.seal.pods if live.seal else ()
    reports = [report_of(view.observed, pod) for pod in sorted(members)]
    waiting = [
        report.pod
        for report in reports
        if report is not None and report.epoch == live.epoch and report.phase == "prepare"
    ]
    return Decision(
        actions=send_directive(view.job, live, "switch", view.observed, waiting),
        phase="Switching",
        message=f"the job switches to epoch {live.epoch}",
        look_again_s=progress_timeout_s(live, view.settings),
    )


def _phases(live: EpochRecord, observed: Observed) -> set[str]:
    """Phases of the live epoch's ranks; "elsewhere" for one that does not hold the epoch."""
    found: set[str] = set()
    for seen in observed.ranked(live):
        rank = seen.rank
        found.add(rank.phase if rank is not None and rank.epoch == live.epoch else "elsewhere")
    return found
