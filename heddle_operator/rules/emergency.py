"""How long a notice lets the job wait, and what it does where there is too little time.

The notice is that of a node, or that of a pod which is evicted or deleted.

A notice that leaves the time for it waits for the pods of other nodes, if without them the state
would live on fewer nodes than `minHolders`.  One that leaves no time for the best plan drops the
replicas on the leaving nodes: the others hold the whole state already, so nothing moves and nobody
is asked.  The planner's better plan for the same GPUs comes later, as an ordinary change.
Invariant: what is dropped is made up for by further micro-batches of the others, so that every step
trains the same samples.
Source: Bamboo and Oobleck drop pipelines of preempted nodes; the notices are in
inventory/disruptions.py.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection
from dataclasses import replace
from statistics import median

from heddle_operator.rules.candidates import given_back, ready_nodes
from heddle_operator.rules.failures import failed_attempt
from heddle_operator.rules.gpu_limits import plan_request
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition
from planner.model.workload import Workload
from planner.plans.plan import Plan, faults

START_S = 20.0  # from adoption until all pods are ready, until the job has started pods
CHANGE_S = 20.0  # from sealing to training, until the job has measured changes of its own
MARGIN = 1.5  # a change that has to fit gets so much more than changes took


def nodes_after(view: View, live: EpochRecord, left: Composition) -> Composition:
    """Nodes for the plan that leaves others: those whose pods are ready, or all that are left.

    Who has to leave may have seconds, so pods that have yet to start join later.  They are waited
    for where the notice leaves the time and the state lives on more nodes with them, as long as
    these are fewer than `minHolders`.

    Args:
        view: the look that is decided on.
        live: the epoch to move from.
        left: the composition without the nodes that are left.
    """
    job, observed = view.job, view.observed
    ready = ready_nodes(job, observed, live.plan, left)
    wanted = min(job.spec.elastic.min_holders, len(left.nodes))
    if ready == left or wanted == 1:
        return ready
    held = 1
    if len(ready.nodes) >= wanted:
        reply = observed.replies.get(plan_request(job, observed, ready, live.plan).key)
        if reply is None or reply.holders_min >= wanted:
            return ready
        held = reply.holders_min
    reply = observed.replies.get(plan_request(job, observed, left, live.plan).key)
    is_no_better = reply is not None and (reply.plan is None or reply.holders_min <= held)
    waits = start_left_s(view, live, reply is not None) > 0
    return left if waits and not is_no_better else ready


def joined_lately(view: View, live: EpochRecord, left: Composition) -> tuple[str, float] | None:
    """A node that joined too lately to be used, and the seconds until it may be.

    None where the state can live on `minHolders` nodes without it, or the notice does not leave the
    time to wait for it and its pod.
    """
    job = view.job
    if len(left.nodes) >= job.spec.elastic.min_holders:
        return None
    refusing = {name for name, _ in view.observed.unusable}
    types = job.spec.elastic.gpu_types.allow
    waits = [
        (node.joined_at_s + job.spec.elastic.join_debounce_seconds - view.now, node.name)
        for node in view.observed.nodes
        if node.leaving_at_s is None and not node.is_cordoned and node.name not in refusing
        if node.for_jobs > 0 and (not types or node.gpu_type in types)
        if node.name not in live.plan.gpus_reached
    ]
    first = min((wait for wait in waits if wait[0] > 0), default=None)
    if first is None or start_left_s(view, live, is_planned=False) <= first[0]:
        return None
    return first[1], first[0]


def start_left_s(view: View, live: EpochRecord, is_planned: bool) -> float:
    """Seconds until it is too late to start pods first; see `emergency_left_s`.

    It always is where a GPU is unhealthy, or another job needs it.
    """
    observed = view.observed
    owed = given_back(observed)
    if any(p.notice or p.name in owed for p in observed.pods if p.name in live.hosts):
        return -math.inf
    took_s = [r.seal.sealed_s - r.adopted_s for r in observed.epochs if r.seal is not None]
    start_s = MARGIN * max(took_s, default=START_S)
    return emergency_left_s(view, live, is_planned=is_planned) - start_s


def emergency_left_s(view: View, live: EpochRecord, *, is_planned: bool) -> float:
    """Seconds until a change must be an emergency move, to end before the first notice does.

    Args:
        view: the look that is decided on.
        live: the epoch to move from.
        is_planned: whether the planner has answered.
    """
    took_s = [  # from when all pods were there: a node is left for pods that are ready
        record.closed_s - record.seal.sealed_s
        for record in view.observed.epochs
        if record.outcome == "live" and record.closed_s is not None and record.seal is not None
        if record.reason in ("join", "drain")
    ]
    needed_s = median(took_s) if took_s else CHANGE_S
    needed_s += 0.0 if is_planned else view.job.spec.planner.budget_seconds
    ends_s = _ends_s(view.observed, live)
    first_s = min((at_s for at_s in ends_s if at_s is not None), default=math.inf)
    return first_s - MARGIN * needed_s - view.now


def _ends_s(observed: Observed, live: EpochRecord) -> tuple[float | None, ...]:
    """When the nodes and pods of a plan go; None for those that stay."""
    return (
        *(node.leaving_at_s for node in observed.nodes if node.name in live.plan.gpus_reached),
        # What an agent says of its own end is by the clock of its node; this is the API server's.
        *(pod.leaving_at_s for pod in observed.pods if pod.name in live.hosts),
    )


def emergency_plan(view: View, live: EpochRecord, left: Composition) -> Plan | None:
    """The live plan without its replicas on nodes that leave; None where that is no plan."""
    staying = {node.name for node in left.nodes}
    plan = without_replicas(live.plan, set(live.plan.nodes) - staying, view.job.workload)
    if plan is None or plan == live.plan or faults(plan, view.job.workload, left):
        return None
    return None if failed_attempt(view.observed.epochs, plan, view.now) else plan


def without_replicas(plan: Plan, gone: Collection[str], workload: Workload) -> Plan | None:
    """The plan without every replica that has a stage on one of these nodes.

    Returns:
        None if none is left, or if the others cannot train the same number of samples.
    """
    hit = {(p.template, p.replica) for p in plan.placement if p.node in gone}
    kept = [
        (t, r)
        for t, template in enumerate(plan.templates)
        for r in range(template.replicas)
        if (t, r) not in hit
    ]
    before = {(t, r): plan.templates[t].micro_batches[r] for t, r in kept}
    counts = dict(before)
    sizes = {place: plan.templates[place[0]].micro_batch for place in kept}
    missing = workload.global_batch - sum(sizes[place] * counts[place] for place in kept)
    # The replica that trains least beside before gets the next micro-batch.
    turns = [(counts[place] / before[place], place) for place in kept]
    heapq.heapify(turns)
    while missing > 0:
        if not turns:
            return None
        _, least = heapq.heappop(turns)
        if sizes[least] <= missing:  # what does not fit now will not fit later
            counts[least] += 1
            missing -= sizes[least]
            heapq.heappush(turns, (counts[least] / before[least], least))
    used = sorted({t for t, _ in kept})
    follows = {t: itertools.count() for t in used}
    new = {place: (used.index(place[0]), next(follows[place[0]])) for place in kept}
    templates = tuple(
        replace(
            plan.templates[t],
            micro_batches=tuple(counts[place] for place in kept if place[0] == t),
        )
        for t in used
    )
    placement = tuple(
        replace(p, template=new[p.template, p.replica][0], replica=new[p.template, p.replica][1])
        for p in plan.placement
        if (p.template, p.replica) in new
    )
    return Plan(templates, placement) if templates else None
