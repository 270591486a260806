"""How many GPUs the plan of a job may use: `maxGPUs`, and what a quota leaves one that starts.

Invariant: the planner sees every GPU that the job may take, and chooses among them; the limit is
the search's, not the composition's.
"""

from __future__ import annotations

from collections.abc import Iterable

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.rules.failures import LeftOut
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.snapshot import Headroom, Observed, ObservedNode
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits
from planner.plans.plan import Plan
from planner.wording import counted, joined
from worker.contract import Reason


def gpu_limits(job: HeddleJob, observed: Observed, composition: Composition) -> GpuLimits:
    """Limits of a plan for these nodes; none where it may use them all."""
    limits = GpuLimits(most_gpus(job, observed))
    return limits if limits.binds(composition) else UNLIMITED


def allowed_gpus(job: HeddleJob, observed: Observed, composition: Composition) -> int:
    """How many of these GPUs a plan may use."""
    return gpu_limits(job, observed, composition).allowed(composition)


def gpus_dealt(observed: Observed, node: ObservedNode) -> int:
    """How many of the node's free GPUs the job may plan with beside other jobs."""
    return (
        node.gpus
        if observed.allowed is None
        else min(node.gpus, observed.allowed.get(node.name, 0))
    )


def usable_gpus(job: HeddleJob, observed: Observed) -> int:
    """GPUs of nodes that stay, as many as a plan may use."""
    staying = (node for node in observed.nodes if node.leaving_at_s is None)
    gpus = sum(gpus_dealt(observed, node) for node in staying)
    most = most_gpus(job, observed)
    return gpus if most is None else min(gpus, most)


def most_gpus(job: HeddleJob, observed: Observed) -> int | None:
    """GPUs that a plan may use at most; None: any number.

    A quota limits further pods: those of a job that has pods are cut out of its composition.
    """
    limits = [] if job.spec.elastic.max_gpus is None else [job.spec.elastic.max_gpus]
    if observed.headroom.gpus is not None and not has_pods(observed):
        limits.append(observed.headroom.gpus)
    return min(limits, default=None)


def has_pods(observed: Observed) -> bool:
    """Whether any pod of the job counts in its quotas."""
    return any(pod.phase != "ended" for pod in observed.pods)


def plan_request(
    job: HeddleJob,
    observed: Observed,
    composition: Composition,
    current: Plan | None,
    reason: Reason = "join",
) -> RequestPlan:
    """Request to the planner for these nodes."""
    return RequestPlan(composition, current, gpu_limits(job, observed, composition), reason)


def too_few_gpus(
    job: HeddleJob,
    observed: Observed,
    composition: Composition,
    left_out: Iterable[LeftOut],
    joining: Iterable[str] = (),
    failed: Iterable[str] = (),
) -> str:
    """Sentence that there are too few GPUs, with the reasons why others are not used.

    Or that so many as it may have at all were shown to have no plan: no more GPUs would help.

    Args:
        job: that waits.
        observed: of its cluster.
        composition: of the nodes that it may use.
        left_out: nodes on which pods did not start.
        joining: names of nodes that joined too lately to be used.
        failed: sentences about GPUs that failed.
    """
    most = job.spec.elastic.max_gpus
    for reply in observed.replies.values():
        if most is not None and reply.gpus >= most:
            return f"there is no plan: {reply.problem}"
    usable, wanted = allowed_gpus(job, observed, composition), job.spec.elastic.min_gpus
    verb = "is" if usable == 1 else "are"
    sentence = f"the job waits: {counted(usable, 'GPU')} {verb} usable, minGPUs is {wanted}"
    unusable = [*failed, *left_by_quotas(observed.headroom)]
    unusable += [f"job {other} was dealt {gpus} of them" for other, gpus in observed.dealt]
    unusable += [f"{out.node} {_how_left_out(out)}: {out.sentence}" for out in left_out]
    unusable += [f"{node} {why}" for node, why in observed.unusable]
    debounce = job.spec.elastic.join_debounce_seconds
    unusable += [f"{node} joined within joinDebounceSeconds ({debounce:g})" for node in joining]
    if not unusable:
        return sentence
    return f"{sentence} ({joined(unusable)})"


def causes_of_too_few(observed: Observed, left_out: Iterable[LeftOut]) -> str:
    """The kinds of reasons of `too_few_gpus`: other pods change its numbers every second."""
    kinds = {
        "quota": left_by_quotas(observed.headroom),
        "dealt": observed.dealt,
        "left-out": tuple(left_out),
        "unusable": observed.unusable,
    }
    return "-".join(kind for kind, found in kinds.items() if found)


def left_by_quotas(room: Headroom) -> list[str]:
    """Sentence with the GPUs that quotas leave; empty without quotas."""
    rooms = ((room.gpus, "GPU"), (room.pods, "pod"))
    return [f"{room.why} leaves {counted(n, what)} more" for n, what in rooms if n is not None]


def _how_left_out(out: LeftOut) -> str:
    return f"is used with at most {counted(out.gpus, 'GPU')}" if out.gpus else "is left out"
