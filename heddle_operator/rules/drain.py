"""Which pods may be evicted: those on nodes that the job can do without, if somebody wants these.

A budget that protects every pod hides a drain: the API server refuses the eviction, and the
operator never hears of it.  So where a cordon alone is no notice (`leaveOnCordon: false`), the
budget leaves out the pods on a cordoned node: an eviction of one then succeeds, and is the notice.
The pod trains on through its grace period while the state moves.  With `yieldToAutoscaler` the pods
on any node may be evicted, one at a time: who consolidates nodes asks only where nothing forbids.
Invariant: a job that cannot do without the node, by its minGPUs or because the planner finds no
plan for what is left, keeps all its pods protected and says so.
Source: Kubernetes' eviction API; Karpenter leaves nodes alone whose budget allows no eviction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import named
from heddle_operator.rules.candidates import leaving_nodes, usable_nodes
from heddle_operator.rules.emergency import nodes_after
from heddle_operator.rules.gpu_limits import plan_request
from heddle_operator.rules.starts import is_ready
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition
from planner.wording import counted

MOST_YIELDED = 16  # nodes, those with the fewest GPUs first: each needs a search at each change


@dataclass(frozen=True, slots=True)
class Drain:
    """Evictions that the job permits.

    Attributes:
        evictable: pods that need no disruption budget.
        blocked: why a drain has to wait, in a sentence; "" if it need not.
        yielded: further pods; one at a time may be evicted.
    """

    evictable: frozenset[str] = frozenset()
    blocked: str = ""
    yielded: frozenset[str] = frozenset()


def drain_of(view: View) -> Drain:
    """Evictions permitted to a drain or an autoscaler now; none while the planner searches."""
    drain = _drain_of_cordoned(view)
    yielded = _yielded(view) - drain.evictable
    return replace(drain, yielded=yielded) if yielded else drain


def _drain_of_cordoned(view: View) -> Drain:
    job, observed, situation = view.job, view.observed, view.situation
    cordoned = _cordoned_hosts(observed)
    if not cordoned:
        return Drain()
    if situation.unread is not None:  # nobody knows which parts of the state are where
        names, epoch = named("node", cordoned), situation.unread
        words = f"a drain of {names} has to wait: the record of epoch {epoch} cannot be read"
        return Drain(blocked=words)
    if situation.live is not None and not set(cordoned) & set(situation.live.plan.nodes):
        return _evictable(job, observed, cordoned)
    left = _left(view, cordoned)
    names = named("node", cordoned)
    wanted = job.spec.elastic.min_gpus
    if left.gpus < wanted:
        return Drain(
            blocked=f"a drain of {names} has to wait: {counted(left.gpus, 'GPU')} would be left, "
            f"minGPUs is {wanted}; add GPUs or lower minGPUs"
        )
    if situation.live is not None:
        reply = observed.replies.get(plan_request(job, observed, left, situation.live.plan).key)
        if reply is None:
            return Drain()
        if reply.plan is None:
            return Drain(
                blocked=f"a drain of {names} has to wait: there is no plan for the "
                f"{counted(left.gpus, 'GPU')} that would be left: {reply.problem}"
            )
    return _evictable(job, observed, cordoned)


def request_drain_plan(view: View) -> tuple[RequestPlan, ...]:
    """Ask ahead for the plans that evictions will need, one after the other."""
    drains = _request_at_cordon(view)
    if drains or view.observed.planning:
        return drains
    asked = (request for _, request in _losses(view))
    return tuple(request for request in asked if request.key not in view.observed.replies)[:1]


def _request_at_cordon(view: View) -> tuple[RequestPlan, ...]:
    observed, situation = view.observed, view.situation
    cordoned = _cordoned_hosts(observed)
    if (
        situation.live is None
        or situation.lost
        or not set(cordoned) & set(situation.live.plan.nodes)
    ):
        return ()
    left = _left(view, cordoned)
    request = plan_request(view.job, observed, left, situation.live.plan, "drain")
    known = request.key in observed.replies or request.key in observed.planning
    return () if known or left.gpus < view.job.spec.elastic.min_gpus else (request,)


def _yielded(view: View) -> frozenset[str]:
    """Pods on those nodes of the live plan without which the planner knows a plan."""
    known = [
        node
        for node, request in _losses(view)
        if (reply := view.observed.replies.get(request.key)) is not None and reply.plan is not None
    ]
    return frozenset(pod.name for pod in view.observed.pods if pod.node in known)


def _losses(view: View) -> list[tuple[str, RequestPlan]]:
    """Nodes that the job may yield, and what the planner is asked with for the loss of each.

    None while anything moves: a job that has not got over one loss is asked for no second one.
    """
    job, observed, situation = view.job, view.observed, view.situation
    live = situation.live
    if live is None or live.outcome != "live" or not job.spec.elastic.yield_to_autoscaler:
        return []
    moves = situation.pending is not None or situation.lost or situation.doubtful
    if moves or any(pod.deleting for pod in observed.pods):
        return []
    if leaving_nodes(observed, live.hosts) & set(live.plan.nodes):
        return []
    used = Counter(placed.node for placed in live.plan.placement for _ in placed.gpus)
    cordoned = _cordoned_hosts(observed)
    found = []
    for node in sorted(used, key=lambda node: (used[node], node))[:MOST_YIELDED]:
        left = _left(view, {node, *cordoned})
        if left.gpus >= job.spec.elastic.min_gpus and _are_ready(observed, left):
            found.append((node, plan_request(job, observed, left, live.plan)))
    return found


def _are_ready(observed: Observed, nodes: Composition) -> bool:
    """Whether the job has all these GPUs in pods that are ready.

    A pod that has yet to start may take longer than an evicted one has left.
    """
    warm = Counter[str]()
    for pod in observed.pods:
        if is_ready(observed, pod):
            warm[pod.node] += pod.gpus
    return all(warm[node.name] >= node.gpus for node in nodes.nodes)


def _evictable(job: HeddleJob, observed: Observed, cordoned: Collection[str]) -> Drain:
    if job.spec.elastic.leave_on_cordon:
        return Drain()  # the job is leaving by itself; its pods are deleted once state has moved
    return Drain(frozenset(pod.name for pod in observed.pods if pod.node in cordoned))


def _cordoned_hosts(observed: Observed) -> tuple[str, ...]:
    """Cordoned nodes with pods of the job that have not ended, in order."""
    hosts = {pod.node for pod in observed.pods if pod.phase != "ended"}
    return tuple(n.name for n in observed.nodes if n.is_cordoned and n.name in hosts)


def _left(view: View, cordoned: Collection[str]) -> Composition:
    """Nodes that a plan may use once the cordoned ones are drained."""
    live = view.situation.live
    leaving = leaving_nodes(view.observed, live.hosts if live else ()) | set(cordoned)
    left = usable_nodes(view, leaving)
    return nodes_after(view, live, left) if live else left
