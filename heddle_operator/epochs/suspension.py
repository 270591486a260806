"""Suspending a job: its pods go once a checkpoint of the newest step is whole.

Invariant: no pod goes by a suspension before the ranks of all have saved; while they cannot, the
job trains on.
Source: Kubernetes' Job (suspend).
"""

from __future__ import annotations

from heddle_operator.epochs.saving import RETRY_S
from heddle_operator.state.actions import Action, CloseEpoch, DeletePod, RecordEvent, SendSuspend
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import View, has_switch_begun

LOOK_AGAIN_S = 1.0
WORDS = "the job is suspended"


def suspend(view: View) -> Decision | None:
    """The next step of a suspension; None: there is none, or a change or a loss comes first."""
    situation, suspends = view.situation, view.job.spec.suspend
    live = situation.live
    if live is None:
        return _stay_suspended(view) if suspends else None
    is_asked = suspends or _is_suspending(view, live)
    if not is_asked or situation.lost or live.outcome != "live":
        return None
    return _suspend(view, live)


def _is_suspending(view: View, live: EpochRecord) -> bool:
    """Whether ranks of the live epoch stand for a suspension, whatever the spec says by now."""
    return any(
        seen.rank is not None and seen.rank.phase in ("suspending", "suspended")
        for seen in view.observed.ranked(live)
    )


def _suspend(view: View, live: EpochRecord) -> Decision | None:
    observed, pending = view.observed, view.situation.pending
    if pending is not None:
        if has_switch_begun(observed, pending.epoch):
            return None
        closed = CloseEpoch(epoch=pending.epoch, outcome="aborted", message=WORDS)
        return Decision(actions=(closed,), phase="Suspending", message=WORDS, look_again_s=0.0)
    phases = {
        seen.rank.phase if seen.rank is not None else "elsewhere" for seen in observed.ranked(live)
    }
    if phases == {"suspended"}:
        step = observed.reached_step
        words = f"{WORDS} after step {step}"
        event = RecordEvent(f"suspended-{live.epoch}", "Suspended", words)
        done = CloseEpoch(epoch=live.epoch, outcome="suspended", message=words, step=step)
        return Decision(actions=(done, event), phase="Suspending", message=words, look_again_s=0.0)
    failed = observed.saves.failed
    if failed is not None and "training" in phases:
        left_s = observed.saves.failed_s + RETRY_S - view.now
        words = (
            f"the checkpoint of step {failed.step} is not saved, and the job trains on: "
            f"{failed.error}"
        )
        if left_s > 0:
            return Decision(
                actions=(),
                phase="Suspending",
                message=words,
                look_again_s=left_s,
                reason="CheckpointFailed",
            )
    told: tuple[Action, ...] = ()
    if "suspending" not in phases:
        told = tuple(SendSuspend(pod) for pod in sorted(live.hosts))
    return Decision(
        actions=told,
        phase="Suspending",
        message="the ranks save a checkpoint, and then stop",
        look_again_s=LOOK_AGAIN_S,
    )


def _stay_suspended(view: View) -> Decision:
    """A suspended job holds no pod and no GPU."""
    left, pending = view.situation.left, view.situation.pending
    words = left.message if left is not None and left.outcome == "suspended" else WORDS
    actions: list[Action] = []
    if pending is not None:
        actions.append(
            CloseEpoch(epoch=pending.epoch, outcome="aborted", message=WORDS, by_suspension=True)
        )
    actions += [DeletePod(pod.name, WORDS) for pod in view.observed.pods if not pod.deleting]
    return Decision(actions=tuple(actions), phase="Suspended", message=words)
