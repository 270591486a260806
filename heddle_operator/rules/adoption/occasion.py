"""What asks for a plan: start, join, drain or loss, and the nodes that the plan may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heddle_operator.rules.attempts import untried
from heddle_operator.rules.candidates import (
    debounce_left_s,
    leaving_reasons,
    ready_nodes,
    started_nodes,
    usable_nodes,
)
from heddle_operator.rules.emergency import nodes_after
from heddle_operator.rules.failures import (
    LeftOut,
    failed_attempt,
    failed_gpus,
    nodes_left_out,
    retry_left_s,
)
from heddle_operator.rules.gain import backoff_s
from heddle_operator.rules.gpu_limits import allowed_gpus, most_gpus, plan_request
from heddle_operator.rules.moves.causes import loses_gpus
from heddle_operator.rules.moves.surplus import large_pod, without_pod
from heddle_operator.rules.partitions import without_partitioned
from heddle_operator.state.decision import Phase, sooner
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import View
from planner.cluster.composition import Composition
from worker.contract import Reason

_PHASES: Mapping[Reason, Phase] = {
    "start": "Pending",
    "join": "Running",
    "drain": "Running",
    "loss": "Recovering",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """Why a plan is asked for, and for which nodes.

    Attributes:
        view: at the job and its cluster.
        reason: of the change.
        composition: of the nodes that the plan may have.
        leaving: why nodes leave, by their names.
        left_out: nodes that may not be used now.
        growth_s: seconds until the steps may grow, at most 0 for now; None where they need not.
        again: seconds after which the occasion may be another; None: only a change matters.
    """

    view: View
    reason: Reason
    composition: Composition
    leaving: Mapping[str, str]
    left_out: tuple[LeftOut, ...]
    growth_s: float | None
    again: float | None

    @property
    def live(self) -> EpochRecord | None:
        """The epoch that trains."""
        return self.view.situation.live

    @property
    def phase(self) -> Phase:
        """Of the job until a plan is adopted."""
        return _PHASES[self.reason]


def occasion_of(view: View) -> Occasion:
    """What this look at the job asks for."""
    live = view.situation.live
    leaving = leaving_reasons(view.observed, live.hosts if live else ())
    reason, composition = _reason_and_nodes(view, leaving)
    left_out = nodes_left_out(view)
    growth_s = None
    if reason == "join" and live is not None:  # else the plan of the move brings the steps along
        growth_s = _growth_pause_s(view, live)
    ends = [out.until_s - view.now for out in left_out]
    ends += failed_gpus(view).values()
    return Occasion(
        view=view,
        reason=reason,
        composition=composition,
        leaving=leaving,
        left_out=left_out,
        growth_s=growth_s,
        again=sooner(debounce_left_s(view), growth_s, *ends),
    )


def _reason_and_nodes(view: View, leaving: Mapping[str, str]) -> tuple[Reason, Composition]:
    situation = view.situation
    live = situation.live
    started = started_nodes(view, frozenset(leaving))
    if live is None:
        return "start", untried(view, started, None)
    most = most_gpus(view.job, view.observed)
    fits = most is None or live.plan.gpus <= most
    if not situation.lost and fits and not loses_gpus(live.plan, started):
        smaller = _without_large_pod(view, live, leaving)
        if smaller is not None:
            return "drain", untried(view, smaller, live)
        return "join", untried(view, started, live, live.plan.nodes)
    left = usable_nodes(view, frozenset(leaving))
    if not situation.lost:
        composition = nodes_after(view, live, left)
        return "drain", untried(view, composition, live)
    composition = ready_nodes(view.job, view.observed, live.plan, left)
    composition = without_partitioned(view, composition)
    return "loss", untried(view, composition, live)


def _without_large_pod(
    view: View, live: EpochRecord, leaving: Mapping[str, str]
) -> Composition | None:
    """The nodes without a pod that holds GPUs above `maxGPUs`; None where the job needs it."""
    job, observed = view.job, view.observed
    large = large_pod(view)
    if large is None:
        return None
    nodes = usable_nodes(view, frozenset(leaving))
    left = without_pod(observed, large, nodes)
    reply = observed.replies.get(plan_request(job, observed, left, live.plan).key)
    has_none = reply is not None and reply.plan is None
    enough = allowed_gpus(job, observed, left) >= job.spec.elastic.min_gpus
    return left if enough and not has_none else None


def _growth_pause_s(view: View, live: EpochRecord) -> float | None:
    """Seconds until the steps may grow, at most 0 for now; None where they need not."""
    observed, now = view.observed, view.now
    if live.steps is None or live.steps >= view.job.spec.steps:
        return None
    ended_s = observed.epochs[-1].closed_s
    pause_s = (
        (now if ended_s is None else ended_s) + backoff_s(observed.epochs, view.settings) - now
    )
    failed = failed_attempt(observed.epochs, live.plan, now)
    return pause_s if failed is None else max(pause_s, retry_left_s(failed, now))
