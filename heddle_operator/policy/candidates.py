"""Which nodes a plan may use now: the composition of a job.

Invariant: nodes that the live plan uses never wait for the debounce and are the last to be cut by
`maxGPUs`. Source: design, section 5; the debounce window is that of Kubernetes' cluster
autoscalers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.reachability import is_reachable
from heddle_operator.state.snapshot import Observed, ObservedNode
from planner.cluster.composition import Composition, Node
from planner.plans.plan import Plan


def leaving_nodes(observed: Observed, hosting: Iterable[str] = ()) -> frozenset[str]:
    """Nodes with a notice of their own, or with a pod in `hosting` that got one."""
    return frozenset(leaving_reasons(observed, hosting))


def leaving_reasons(observed: Observed, hosting: Iterable[str] = ()) -> dict[str, str]:
    """Nodes with a notice of their own, or with a pod in `hosting` that got one, and what it is."""
    said = dict(observed.unusable)
    found = {
        node.name: said.get(node.name, "got a notice")
        for node in observed.nodes
        if node.leaving_at_s is not None
    }
    live = set(hosting)
    for pod in observed.pods:
        view = observed.agents.get(pod.name)
        noticed = (
            view is not None and view.report is not None and view.report.leaving_at_s is not None
        )
        if pod.name in live and (pod.deleting or pod.notice or noticed):
            why = f"hosts pod {pod.name}, which must leave"
            found.setdefault(pod.node, f"{why}: {pod.notice}" if pod.notice else why)
    return found


def usable_nodes(
    job: HeddleJob,
    observed: Observed,
    live: Plan | None,
    now: float,
    leaving: frozenset[str],
    failed: Iterable[tuple[str, int]] = (),
) -> Composition:
    """The composition that a plan is asked for.

    Of a node with a GPU that failed, as (node, GPU), only those before it are used: a plan counts a
    node's GPUs from 0.
    """
    used = set(live.nodes) if live else set()
    debounce = job.spec.elastic.join_debounce_seconds
    allowed = job.spec.elastic.gpu_types.allow
    refusing = {name for name, _ in observed.unusable}
    staying = {pod.node for pod in observed.pods if not pod.deleting}
    sound: dict[str, int] = {}
    for name, gpu in failed:
        sound[name] = min(gpu, sound.get(name, gpu))
    nodes = [
        node
        for node in (
            replace(n, gpus=min(n.gpus, sound.get(n.name, n.gpus))) for n in observed.nodes
        )
        if node.name not in leaving
        and node.gpus > 0
        # One that takes no new pods has only the GPUs of the pods that stay there.
        and (node.name not in refusing or node.name in staying)
        and (not allowed or node.gpu_type in allowed)
        and (node.name in used or node.joined_at_s + debounce <= now)
    ]
    return Composition(tuple(_cut(nodes, used, job.spec.elastic.max_gpus)))


def ready_nodes(
    job: HeddleJob, observed: Observed, live: Plan, composition: Composition
) -> Composition:
    """The nodes whose agents are ready, where they suffice; else the whole composition.

    Who has to leave may have seconds, and a pod that has yet to start may take minutes: its node
    joins later.
    """
    warm = {
        pod.node
        for pod in observed.pods
        if is_reachable(pod, view := observed.agents.get(pod.name))
        and view
        and view.report
        and view.report.ready
    }
    kept = composition.without(node.name for node in composition.nodes if node.name not in warm)
    if kept.gpus < job.spec.elastic.min_gpus:
        return composition
    reply = observed.replies.get(RequestPlan(kept, live).key)
    return composition if reply is not None and reply.plan is None else kept


def debounce_left_s(job: HeddleJob, observed: Observed, now: float) -> float | None:
    """Seconds until the next node has been stable for long enough; None if none is waiting."""
    debounce = job.spec.elastic.join_debounce_seconds
    waits = [
        node.joined_at_s + debounce - now
        for node in observed.nodes
        if node.joined_at_s + debounce > now
    ]
    return min(waits) if waits else None


def _cut(nodes: list[ObservedNode], used: set[str], max_gpus: int | None) -> list[Node]:
    """Whole nodes, those in use first, and the last one cut to what `maxGPUs` leaves."""
    left = max_gpus if max_gpus is not None else sum(node.gpus for node in nodes)
    kept: list[Node] = []
    for node in sorted(nodes, key=lambda node: (node.name not in used, node.name)):
        gpus = min(node.gpus, left)
        if gpus > 0:
            kept.append(Node(node.name, node.gpu_type, gpus, node.link_domain, node.speed_factor))
            left -= gpus
    return kept
