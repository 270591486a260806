"""Demand of a job to the arbiter, read from its snapshot.

Invariant: what is on record counts as held before its pods are there, so that nobody else gets it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.rules.arbitration.demand import Demand
from heddle_operator.rules.candidates import eligible_nodes, leaving_nodes
from heddle_operator.rules.limits import past_deadline
from heddle_operator.rules.moves.surplus import replaced_gpus
from heddle_operator.state.epoch_record import EpochRecord, newest_live
from heddle_operator.state.situation import Situation, View
from heddle_operator.state.snapshot import Observed, ObservedNode
from heddle_operator.state.speeds.type_speed import type_speeds
from heddle_operator.state.speeds.work import faster_median
from heddle_operator.state.worth import NodeSizes, Worth

WEIGHT_STEP = 0.25  # so that a new measurement seldom changes who gets what


def demand_of(view: View) -> Demand | None:
    """GPUs that the job holds and wants; None once it has ended, or is suspended."""
    job, observed, situation = view.job, view.observed, view.situation
    if any(record.outcome in ("complete", "failed") for record in observed.epochs):
        return None
    if not observed.epochs and past_deadline(view):  # such an end is on no record
        return None
    if job.spec.suspend and situation.live is None and not observed.pods:
        return None
    leaving = leaving_nodes(observed, situation.live.hosts if situation.live else ())
    nodes = eligible_nodes(view, leaving)
    pods = _held(observed, situation)
    held = sum(gpus for _, gpus in pods)
    limits = [sum(node.for_jobs for node in nodes), *_quota_limits(observed, nodes)]
    if job.spec.elastic.max_gpus is not None:
        # What a pod holds above it is replaced elsewhere before the pod is given back.
        limits.append(job.spec.elastic.max_gpus + replaced_gpus(view))
    room = observed.headroom.gpus
    sizes = sizes_to_weigh(nodes, min(limits))
    return Demand(
        job=job.metadata.uid or job.name,
        priority=observed.priority,
        since=job.metadata.creation_timestamp or "",
        least=_least(job, observed, min(limits)),
        most=min(limits),
        weight=weight_of(observed.epochs),
        nodes=tuple((node.name, node.for_jobs) for node in nodes),
        pods=pods,
        firm=_firm(job, observed, held),
        further=math.inf if room is None else max(0, room),
        types={node.name: node.gpu_type for node in nodes},
        worth=_worth(observed, sizes),
        name=f"{job.metadata.namespace}/{job.name}",
        weighed=sizes,
        min_holders=job.spec.elastic.min_holders,
    )


def sizes_to_weigh(nodes: Iterable[ObservedNode], most: int) -> NodeSizes:
    """The nodes by which the planner tells what GPUs of each type are worth; none for one type.

    Of each type the largest, so many as the job may use.  Sizes are all that counts, so that a node
    that comes or goes among many others changes nothing.
    """
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        sizes.setdefault(node.gpu_type, []).append(node.for_jobs)
    if len(sizes) < 2:
        return ()
    found = []
    for gpu_type, row in sorted(sizes.items()):
        left, kept = most, []
        for gpus in sorted(row, reverse=True):
            if left <= 0:
                break
            kept.append(min(gpus, left))
            left -= gpus
        found.append((gpu_type, tuple(kept)))
    return tuple(found)


def _worth(observed: Observed, sizes: NodeSizes) -> Worth | None:
    """The planner's word on these nodes, else its newest on other nodes of all these types.

    Else each node that comes or goes would make the job's share a guess until it is weighed anew.
    """
    found = observed.worths.get(sizes)
    if sizes and found is None:
        types = {gpu_type for gpu_type, _ in sizes}
        weighed = (worth for key, worth in observed.worths.items() if types <= {t for t, _ in key})
        found = next(reversed(tuple(weighed)), None)
    return found.at_speeds(type_speeds(observed.nodes)) if found is not None else None


def _quota_limits(observed: Observed, nodes: Iterable[ObservedNode]) -> list[int]:
    """GPUs that quotas leave the job on these nodes, with those that its pods have there.

    A pod that leaves fills its quota until it is gone: its GPUs are nobody's meanwhile.
    """
    own = Counter[str]()
    for pod in observed.pods:
        if pod.phase != "ended" and not pod.deleting:
            own[pod.node] += pod.gpus
    further = {node.name: max(0, node.for_jobs - own[node.name]) for node in nodes}
    held = sum(own[name] for name in further)
    room = observed.headroom
    limits = [] if room.gpus is None else [held + room.gpus]
    if room.pods is not None:
        limits.append(held + sum(sorted(further.values(), reverse=True)[: room.pods]))
    return limits


def _firm(job: HeddleJob, observed: Observed, held: int) -> float:
    """GPUs that it takes by itself: without mode Auto those of its plan and of `planRef`."""
    live = _live(observed)
    if job.spec.elastic.mode == "Auto" or live is None:
        return math.inf
    named = observed.referenced.plan if observed.referenced else None
    return max(held, live.plan.gpus, named.gpus if named else 0)


def _live(observed: Observed) -> EpochRecord | None:
    """The epoch that trains, by its record."""
    return newest_live(observed.epochs)


def _least(job: HeddleJob, observed: Observed, most: int) -> int:
    """`minGPUs`, or one more than so many as were shown to have no plan.

    Else two jobs that need two GPUs each would be dealt one each, and neither would train.  A job
    that something keeps from starting needs more than it can have: so it sees what is free, and
    keeps it from nobody.
    """
    least = max((reply.gpus + 1 for reply in observed.replies.values() if reply.gpus), default=0)
    live = _live(observed)
    hindered = observed.taken or observed.unrecorded or observed.template_problem
    if live is None and hindered:
        return max(job.spec.elastic.min_gpus, most + 1)
    if live is not None:  # it trains with what it has, whatever has no plan
        least = min(least, live.plan.gpus)
    return max(job.spec.elastic.min_gpus, least)


def weight_of(epochs: Iterable[EpochRecord]) -> float:
    """Worth of a further GPU in units of the job's mean GPU, by the planner's predictions.

    The elasticity of throughput between the two newest plans of different sizes: 1 where twice the
    GPUs are twice as fast, and where only one size is known.  Predictions from before the speed of
    a GPU type was corrected are no measure for those after it.
    """
    rows = [(r, r.step_s) for r in epochs if r.step_s]
    if not rows:
        return 1.0
    newest, newest_s = rows[-1]
    others = ((r, step_s) for r, step_s in reversed(rows) if r.plan.gpus != newest.plan.gpus)
    other = next(((r, step_s) for r, step_s in others if _are_alike(r, newest)), None)
    if other is None:
        return 1.0
    (less, slow), (more, fast) = sorted(
        [(newest.plan.gpus, newest_s), (other[0].plan.gpus, other[1])]
    )
    worth = math.log(slow / fast) / math.log(more / less)
    return min(1.0, max(WEIGHT_STEP, round(worth / WEIGHT_STEP) * WEIGHT_STEP))


def _are_alike(one: EpochRecord, other: EpochRecord) -> bool:
    """Whether both were planned with the same speeds of the GPU types that both had."""
    mine, theirs = _speeds_planned(one), _speeds_planned(other)
    return all(theirs.get(gpu_type, speed) == speed for gpu_type, speed in mine.items())


def _speeds_planned(record: EpochRecord) -> dict[str, float]:
    rows: dict[str, list[float]] = {}
    for node in record.composition.nodes:
        rows.setdefault(node.gpu_type, []).append(1 / node.speed_factor)
    return {gpu_type: 1 / faster_median(row) for gpu_type, row in rows.items()}


def _held(observed: Observed, situation: Situation) -> tuple[tuple[str, int], ...]:
    """Pods by node in GPU order, then what a pending plan wants beside them."""
    pods = [
        (pod.node, pod.gpus)
        for pod in sorted(observed.pods, key=lambda pod: (pod.node, pod.ordinal))
        if pod.phase != "ended" and not pod.deleting
    ]
    held = Counter[str]()
    for node, gpus in pods:
        held[node] += gpus
    reached = situation.pending.plan.gpus_reached if situation.pending else {}
    missing = [(node, gpus - held[node]) for node, gpus in sorted(reached.items())]
    return (*pods, *((node, gpus) for node, gpus in missing if gpus > 0))
