"""Which nodes the next attempt is for: those without a plan that failed on them too short ago.

Source: rules/failures.py has the memory; this is what follows from it for a plan as a whole.
"""

from __future__ import annotations

from collections.abc import Collection

from heddle_operator.rules.failures import failed_attempt, retry_left_s
from heddle_operator.rules.gpu_limits import plan_request
from heddle_operator.state.actions import RecordEvent
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import View
from planner.cluster.composition import Composition
from planner.wording import joined


def untried(
    view: View, composition: Composition, live: EpochRecord | None, kept: Collection[str] = ()
) -> Composition:
    """Nodes for which the planner has no plan yet that failed on them.

    Where the plan for all of them failed, one node after the other is left out, those whose rank
    failed first; where each such plan failed as well, the answer is all nodes.

    Args:
        view: the look that is decided on.
        composition: all nodes that may be used.
        live: the epoch to move from; None at the start.
        kept: nodes that are never left out.
    """
    failed = _failed_on(view, composition, live)
    if failed is None:
        return composition
    kept = frozenset(kept)
    guilty = {node for failure in failed.failures for node, _ in failure.gpus}
    order = sorted(composition.nodes, key=lambda n: (n.name not in guilty, n.gpus, n.name))
    for node in (node for node in order if node.name not in kept):
        rest = composition.without([node.name])
        is_new = live is None or rest != live.composition
        if is_new and rest.gpus >= view.job.spec.elastic.min_gpus:
            request = plan_request(view.job, view.observed, rest, live.plan if live else None)
            reply = view.observed.replies.get(request.key)
            has_none = reply is not None and reply.plan is None
            if not has_none and _failed_on(view, rest, live) is None:
                return rest
    return composition


def keep_after_failure(failed: EpochRecord, now: float, again: float | None) -> Decision:
    """Keep the live plan: the better one failed, and nothing forces the job to move."""
    words = joined(failure.sentence for failure in failed.failures)
    sentence = f"the plan is kept: the better one failed in epoch {failed.epoch}: {words}"
    left_s = retry_left_s(failed, now)
    event = RecordEvent(f"kept-{failed.epoch}-failed", "PlanKept", sentence)
    again = sooner(again, left_s)
    return Decision(
        actions=(event,),
        phase="Running",
        message=sentence,
        look_again_s=again,
        keeps_plan=True,
        reason="PlanKept",
    )


def _failed_on(
    view: View, composition: Composition, live: EpochRecord | None
) -> EpochRecord | None:
    observed = view.observed
    request = plan_request(view.job, observed, composition, live.plan if live else None)
    reply = observed.replies.get(request.key)
    if reply is None or reply.plan is None:
        return None
    return failed_attempt(observed.epochs, reply.plan, view.now)
