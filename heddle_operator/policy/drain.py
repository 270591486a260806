"""Which pods a drain may evict: those on cordoned nodes that the job can do without.

A budget that protects every pod hides a drain: the API server refuses the eviction, and the
operator never hears of it.  So where a cordon alone is no notice (`leaveOnCordon: false`), the
budget leaves out the pods on a cordoned node: an eviction of one then succeeds, and is the notice.
The pod trains on through its grace period while the state moves.
Invariant: a job that cannot do without the node, by its minGPUs or because the planner finds no
plan for what is left, keeps all its pods protected and says so.
Source: Kubernetes' eviction API.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import named
from heddle_operator.policy.candidates import leaving_nodes, ready_nodes, usable_nodes
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.situation import Situation
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition
from planner.wording import counted


@dataclass(frozen=True, slots=True)
class Drain:
    """What a drain of the cordoned nodes that host the job may do.

    Attributes:
        evictable: pods that the disruption budget need not write_budget.
        blocked: why a drain has to wait, in a sentence; "" if it need not.
    """

    evictable: frozenset[str] = frozenset()
    blocked: str = ""


def drain_of(job: HeddleJob, observed: Observed, now: float, where: Situation) -> Drain:
    """What a drain may do now; nothing while the planner is still asked."""
    cordoned = _cordoned_hosts(observed)
    if not cordoned:
        return Drain()
    if where.live is not None and not set(cordoned) & set(where.live.plan.nodes):
        return _evictable(job, observed, cordoned)
    left = _left(job, observed, now, where, cordoned)
    names = named("node", cordoned)
    wanted = job.spec.elastic.min_gpus
    if left.gpus < wanted:
        return Drain(
            blocked=f"a drain of {names} has to wait: {counted(left.gpus, 'GPU')} would be left, "
            f"minGPUs is {wanted}; add GPUs or lower minGPUs"
        )
    if where.live is not None:
        reply = observed.replies.get(RequestPlan(left, where.live.plan).key)
        if reply is None:
            return Drain()
        if reply.plan is None:
            return Drain(
                blocked=f"a drain of {names} has to wait: there is no plan for the "
                f"{counted(left.gpus, 'GPU')} that would be left: {reply.problem}"
            )
    return _evictable(job, observed, cordoned)


def request_drain_plan(
    job: HeddleJob, observed: Observed, now: float, where: Situation
) -> tuple[RequestPlan, ...]:
    """Ask at the cordon for the plan that a drain will need."""
    cordoned = _cordoned_hosts(observed)
    if where.live is None or where.lost or not set(cordoned) & set(where.live.plan.nodes):
        return ()
    left = _left(job, observed, now, where, cordoned)
    request = RequestPlan(left, where.live.plan)
    known = request.key in observed.replies or request.key in observed.planning
    return () if known or left.gpus < job.spec.elastic.min_gpus else (request,)


def _evictable(job: HeddleJob, observed: Observed, cordoned: Collection[str]) -> Drain:
    if job.spec.elastic.leave_on_cordon:
        return Drain()  # the job is leaving by itself; its pods are deleted once state has moved
    return Drain(frozenset(pod.name for pod in observed.pods if pod.node in cordoned))


def _cordoned_hosts(observed: Observed) -> tuple[str, ...]:
    """Cordoned nodes with pods of the job that have not ended, in order."""
    hosts = {pod.node for pod in observed.pods if pod.phase != "ended"}
    return tuple(n.name for n in observed.nodes if n.is_cordoned and n.name in hosts)


def _left(
    job: HeddleJob, observed: Observed, now: float, where: Situation, cordoned: Collection[str]
) -> Composition:
    """What a plan may use once the cordoned nodes are drained."""
    live = where.live
    leaving = leaving_nodes(observed, live.hosts if live else ()) | set(cordoned)
    left = usable_nodes(job, observed, where, now, leaving)
    return ready_nodes(job, observed, live.plan, left) if live else left
