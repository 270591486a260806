"""The end of a job: well, when the weights are on disk; badly, when an error would come for ever.

Whether the job is done is asked before all else: a change that prepares has nothing left to train.
Invariant: `Complete` only when every rank of the live epoch has read its part of the final weights
back from the disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle_operator.apis.spec import JobSpec
from heddle_operator.rules.failures import causes_of, comes_again
from heddle_operator.state.actions import Action, CloseEpoch, RecordEvent
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.reachability import is_pod_lost, sends_heartbeats
from heddle_operator.state.reasons import DecisionReason, FailedReason
from heddle_operator.state.situation import Situation, View
from heddle_operator.state.snapshot import MemberView, Observed
from worker.contract import RankReport

LOOK_AGAIN_S = 5.0  # while weights are written
TRAINED = "all steps are trained"
IN_PARTS = (
    "the pods do not share the output folder, so each has its part of the "
    "weights in parts/: bring these together in one folder and run `heddle weights export`"
)


def end_well(view: View, spec: JobSpec, live: EpochRecord) -> Decision | None:
    """The end of a job whose ranks write the final weights; None if one of them does not.

    Its last step is trained, or it has diverged: then it fails, and the weights before that step
    are kept.

    Args:
        view: the look that is decided on.
        spec: of the job.
        live: the epoch that trained.
    """
    observed = view.observed
    phases: list[str] = []
    for seen in observed.ranked(live):
        phase = _phase_of(view, live, seen)
        if phase not in ("saving", "done"):
            return None
        phases.append(phase)
    if not phases:
        return None
    actions: list[Action] = []
    if view.situation.pending is not None:
        actions.append(
            CloseEpoch(
                epoch=view.situation.pending.epoch,
                outcome="aborted",
                message="the training has ended",
            )
        )
    diverged = _divergence(live, observed)
    if set(phases) == {"done"} and diverged is not None:
        folder = spec.output.path if spec.output else ""
        kept = f"the weights after step {diverged.step} are in {folder}{_how_kept(observed)}"
        return fail(live, "Diverged", f"{diverged.error}; {kept}", actions)
    if set(phases) == {"done"}:
        words = TRAINED + _how_kept(observed)
        actions.append(
            CloseEpoch(
                epoch=live.epoch, outcome="complete", message="" if words == TRAINED else words
            )
        )
        return Decision(actions=tuple(actions), phase="Complete", message=words)
    failed = output_failure(observed)
    if failed:
        actions.append(RecordEvent(f"output-{live.epoch}-{failed}", "OutputFailed", failed))
    done = phases.count("done")
    words = failed or f"the final weights are written: {done} of {len(phases)} ranks are done"
    words = f"{diverged.error}; {words}" if diverged else words
    reason: DecisionReason | None = "OutputFailed" if failed else "Diverged" if diverged else None
    return Decision(
        actions=tuple(actions),
        phase="Saving",
        message=words,
        look_again_s=LOOK_AGAIN_S,
        reason=reason,
    )


def _divergence(live: EpochRecord, observed: Observed) -> RankReport | None:
    """A rank that keeps the weights before a step that was not finite; None if there is none."""
    words = (seen.newest_word for seen in observed.ranked(live))
    return next((word for word in words if word and word.error_kind == "numeric"), None)


def _how_kept(observed: Observed) -> str:
    """Steps left to the user for the weights, as ranks say; "" if they are one folder."""
    reports = [agent.report for agent in observed.agents.values() if agent.report]
    if any(rank.kept_as == "parts" for report in reports for rank in report.ranks):
        return f"; {IN_PARTS}"
    return ""


def output_failure(observed: Observed) -> str:
    """Why the final weights cannot be written now; "" if they can.  The ranks try again."""
    for agent in observed.agents.values():
        for rank in agent.report.ranks if agent.report else ():
            if rank.phase == "saving" and rank.error_kind == "output":
                return f"the final weights cannot be written: {rank.error}"
    return ""


def end_badly(live: EpochRecord, observed: Observed, situation: Situation) -> Decision | None:
    """The end of a job whose ranks halted with an error that no other plan avoids; else None."""
    for holder in situation.holders:
        rank = holder.rank
        if rank.phase == "halted" and rank.error_kind == "numeric":
            return fail(live, "Diverged", f"{rank.error} (after step {rank.step})")
    for failure in causes_of(situation):
        if comes_again(observed.epochs, failure):
            words = f"the same error came twice after step {failure.step}: {failure.sentence}"
            return fail(live, "DeterministicError", words)
    return None


def end_by_limit(reason: FailedReason, sentence: str, observed: Observed) -> Decision:
    """The end of a job beyond a limit of its own; one without any record says so anew each time."""
    if observed.epochs:
        return fail(observed.epochs[-1], reason, sentence)
    event = RecordEvent(f"failed-{reason}", reason, sentence)
    return Decision(actions=(event,), phase="Failed", message=sentence, reason=reason)


def fail(
    live: EpochRecord, reason: FailedReason, sentence: str, actions: Sequence[Action] = ()
) -> Decision:
    """The end of a job: its record, its Event and its phase name the same reason."""
    event = RecordEvent(f"failed-{live.epoch}", reason, sentence)
    closed = CloseEpoch(epoch=live.epoch, outcome="failed", message=sentence, failed=reason)
    return Decision(
        actions=(*actions, closed, event), phase="Failed", message=sentence, reason=reason
    )


def _phase_of(view: View, live: EpochRecord, seen: MemberView) -> str:
    """A rank's phase by its newest report; what was done stays done, whatever comes after."""
    rank = seen.newest_word
    if rank is None or rank.epoch != live.epoch:
        return "elsewhere"
    is_lost = is_pod_lost(
        view.observed, seen.member.pod, view.now, view.settings
    ) or not sends_heartbeats(rank, view.settings)
    return "lost" if is_lost and rank.phase != "done" else rank.phase
