"""Which nodes a plan may use now: the composition of a job.

Invariant: nodes that the live plan uses never wait for the debounce and are the last to be cut by
a quota; `maxGPUs` cuts none, as the search chooses among all (`gpu_limits`).
Source: the debounce window is that of Kubernetes' cluster autoscalers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.rules.failures import failed_gpus, nodes_left_out
from heddle_operator.rules.gpu_limits import gpus_dealt, has_pods, plan_request
from heddle_operator.rules.starts import gpus_up, is_ready, starting_nodes
from heddle_operator.state.situation import Situation, View
from heddle_operator.state.snapshot import Observed, ObservedNode
from planner.cluster.composition import Composition, Node
from planner.plans.plan import Plan

JOINING_TOLD_S = 30.0  # a node that waits no longer than this for `joinDebounceSeconds` is not told


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
        agent = observed.agents.get(pod.name)
        noticed = (
            agent is not None and agent.report is not None and agent.report.leaving_at_s is not None
        )
        if pod.name in live and (pod.deleting or pod.notice or noticed):
            why = f"hosts pod {pod.name}, which must leave"
            found.setdefault(pod.node, f"{why}: {pod.notice}" if pod.notice else why)
    return found


def usable_nodes(
    view: View, leaving: frozenset[str], starting: Collection[str] = ()
) -> Composition:
    """The composition that a plan is asked for: what is free of what the job is allowed."""
    observed, are_hosts = view.observed, pods_are_hosts(view)
    nodes = eligible_nodes(view, leaving, starting)
    if observed.allowed is not None:
        nodes = [replace(node, gpus=gpus_dealt(observed, node)) for node in nodes]
    return Composition(
        tuple(
            Node(
                name=node.name,
                gpu_type=node.gpu_type,
                gpus=node.gpus,
                link_domain=node.link_domain,
                speed_factor=node.speed,
                price=_price(view, node),
                hosts=_pod_sizes(observed, node.name) if are_hosts else (),
            )
            for node in _cut(nodes, _used(view.situation)[0], observed)
            if node.gpus > 0
        )
    )


def pods_are_hosts(view: View) -> bool:
    """Whether the ranks use NCCL, which takes two pods of one node for two hosts.

    Where the job does not say that its pods have GPUs, the pods say it themselves.
    """
    device = view.job.spec.worker.device
    if view.job.workload.wire != "nccl" or device == "CPU":
        return False
    views = view.observed.agents.values()  # one that does not answer just now has said it, too
    return device == "CUDA" or any(seen.report and seen.report.wire == "nccl" for seen in views)


def _pod_sizes(observed: Observed, node: str) -> tuple[int, ...]:
    """GPUs of each pod that stays on a node; the GPUs after them would be a further pod's."""
    pods = observed.pods_on(node)
    return tuple(pod.gpus for pod in pods if pod.phase != "ended" and not pod.deleting)


def _price(view: View, node: ObservedNode) -> float | None:
    """Money per hour of a node's GPUs; None unless money decides, or where nobody said it."""
    if view.job.spec.planner.objective != "Cost":
        return None
    price = node.gpu_price
    if price is None:
        price = view.settings.prices.get(node.gpu_type)
    return None if price is None else price * node.gpus


def eligible_nodes(
    view: View, leaving: frozenset[str], starting: Collection[str] = ()
) -> list[ObservedNode]:
    """Nodes whose GPUs the job could use, were all that other jobs hold there free.

    Of a node with a GPU that failed only those before it are used: a plan counts a node's GPUs
    from 0.  Of a node on which pods could not start, and of those in `starting`, only the GPUs of
    its pods that are up.
    """
    observed = view.observed
    used, hosts = _used(view.situation)
    debounce = view.job.spec.elastic.join_debounce_seconds
    allowed = view.job.spec.elastic.gpu_types.allow
    refusing = {name for name, _ in observed.unusable}
    staying = {pod.node for pod in observed.pods if not pod.deleting}
    sound = {name: gpus_up(observed, name, hosts) for name in starting}
    for left_out in nodes_left_out(view):
        up = gpus_up(observed, left_out.node, hosts)
        sound[left_out.node] = up if left_out.node in sound else max(up, left_out.gpus)
    for name, gpu in failed_gpus(view):
        sound[name] = min(gpu, sound.get(name, gpu))
    return [
        node
        for node in (_limited(n, sound.get(n.name, n.for_jobs)) for n in observed.nodes)
        if node.name not in leaving
        and node.for_jobs > 0
        # One that takes no new pods has only the GPUs of the pods that stay there.
        and (node.name not in refusing or node.name in staying or node.lent)
        and (not allowed or node.gpu_type in allowed)
        and (node.name in used or node.joined_at_s + debounce <= view.now)
    ]


def given_back(observed: Observed) -> frozenset[str]:
    """Pods of the job whose GPUs it is not allowed any more."""
    if observed.allowed is None:
        return frozenset()
    found, reached = [], dict.fromkeys(observed.allowed, 0)
    for pod in sorted(observed.pods, key=lambda pod: pod.ordinal):
        if pod.phase != "ended" and not pod.deleting:
            reached[pod.node] = reached.get(pod.node, 0) + pod.gpus
            if reached[pod.node] > observed.allowed.get(pod.node, 0):
                found.append(pod.name)
    return frozenset(found)


def ready_nodes(
    job: HeddleJob, observed: Observed, live: Plan, composition: Composition
) -> Composition:
    """The GPUs of pods whose agents are ready, where they suffice; else the whole composition.

    Who has to leave may have seconds, and a pod that has yet to start may take minutes: its GPUs
    join later.
    """
    warm: dict[str, int] = {}
    for pod in observed.pods:
        if is_ready(observed, pod):
            warm[pod.node] = warm.get(pod.node, 0) + pod.gpus
    kept = Composition(
        tuple(
            replace(node, gpus=min(node.gpus, warm[node.name]))
            for node in composition.nodes
            if node.name in warm
        )
    )
    if kept.gpus < job.spec.elastic.min_gpus:
        return composition
    reply = observed.replies.get(plan_request(job, observed, kept, live).key)
    return composition if reply is not None and reply.plan is None else kept


def started_nodes(view: View, leaving: frozenset[str]) -> Composition:
    """The composition without pods that have yet to become ready: they join once they are.

    At the start all are waited for, unless the others suffice.
    """
    starting = starting_nodes(view.observed, _used(view.situation)[1])
    found = usable_nodes(view, leaving, starting)
    if view.situation.live is None and found.gpus < view.job.spec.elastic.min_gpus:
        return usable_nodes(view, leaving)
    return found


def joining_nodes(view: View) -> tuple[tuple[str, float], ...]:
    """Nodes that joined too lately to be used, and until when by the loop's clock.

    None where they wait so shortly that nobody would ask for the reason.
    """
    debounce = view.job.spec.elastic.join_debounce_seconds
    used = _used(view.situation)[0]
    return tuple(
        (node.name, node.joined_at_s + debounce)
        for node in view.observed.nodes
        if debounce > JOINING_TOLD_S and node.for_jobs > 0 and node.name not in used
        if node.joined_at_s + debounce > view.now
    )


def debounce_left_s(view: View) -> float | None:
    """Seconds until the next node has been stable for long enough; None if none is waiting."""
    debounce = view.job.spec.elastic.join_debounce_seconds
    waits = [
        node.joined_at_s + debounce - view.now
        for node in view.observed.nodes
        if node.joined_at_s + debounce > view.now
    ]
    return min(waits) if waits else None


def _limited(node: ObservedNode, most: int) -> ObservedNode:
    """The node with at most so many GPUs, those of other jobs included."""
    gpus = min(node.gpus, most)
    return replace(node, gpus=gpus, lent=min(node.lent, most - gpus))


def _used(situation: Situation) -> tuple[frozenset[str], frozenset[str]]:
    """Nodes and pods of the live plan."""
    live = situation.live
    return (frozenset(live.plan.nodes), live.hosts) if live else (frozenset(), frozenset())


def _cut(
    nodes: list[ObservedNode], used: Collection[str], observed: Observed
) -> Iterable[ObservedNode]:
    """GPUs that quotas leave beside those of the job: nodes in use first, then larger ones."""
    room = observed.headroom
    if room.pods is None and (room.gpus is None or not has_pods(observed)):
        return nodes
    held = Counter[str]()
    for pod in observed.pods:
        if pod.phase != "ended":
            held[pod.node] += pod.gpus
    further = math.inf if room.gpus is None or not held else room.gpus
    pods = math.inf if room.pods is None else room.pods
    kept = []
    for node in sorted(
        nodes, key=lambda n: (n.name not in used, not held[n.name], -n.gpus, n.name)
    ):
        own = held[node.name]
        gpus = int(min(node.gpus, own + (further if pods > 0 else 0)))
        if gpus > own:
            further, pods = further - (gpus - own), pods - 1
        kept.append(replace(node, gpus=gpus))
    return kept
