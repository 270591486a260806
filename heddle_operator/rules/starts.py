"""Whether the pods of a node start: ready, late without a word of why, in trouble, or failed.

Invariant: what is told of a node is the cluster's own sentence.
Source: Kubernetes' pod life cycle; the pauses that follow are in rules/failures.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from heddle_operator.state.epoch_record import EpochRecord, StartFailure
from heddle_operator.state.reachability import is_pod_lost, report_of
from heddle_operator.state.reasons import StartCause
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed, ObservedPod

# Words of the scheduler, of a quota and of a LimitRange for what fewer GPUs may get: a pod asks for
# CPU and memory with its GPUs.
_TOO_LARGE = re.compile(r"Insufficient \S|exceeded quota: |maximum \S+ usage per \w+ is ")
SHARED_FATE = 0.5  # of `pod_problem_s`: a trouble so old fails with the first that is given up


@dataclass(frozen=True, slots=True)
class Trouble:
    """Reason why pods of a node do not start.

    Attributes:
        since_s: since when the pod exists, was adopted, or is refused; see `RefusedPod`.
        gpus: see `StartFailure`.
    """

    node: str
    cause: StartCause
    sentence: str
    since_s: float
    gpus: int = 0


def is_ready(observed: Observed, pod: ObservedPod) -> bool:
    """Whether a pod's agent answers and could take part in a change."""
    report = report_of(observed, pod.name)
    return report is not None and report.ready


def starting_nodes(observed: Observed, hosts: Collection[str]) -> frozenset[str]:
    """Nodes with a pod that has yet to become ready; `hosts` are pods whose ranks train."""
    return frozenset(
        pod.node
        for pod in observed.pods
        if pod.phase != "ended" and not pod.deleting and not _is_up(observed, pod, hosts)
    )


def gpus_up(observed: Observed, node: str, hosts: Collection[str]) -> int:
    """GPUs of the pods of a node that have become ready."""
    pods = [pod for pod in observed.pods_on(node) if not pod.deleting]
    return sum(pod.gpus for pod in pods if _is_up(observed, pod, hosts))


def troubles(record: EpochRecord, observed: Observed) -> tuple[Trouble, ...]:
    """Reasons why pods of an epoch do not start, at most one for each node."""
    found: dict[str, Trouble] = {}
    nodes = set(record.plan.nodes)
    for pod in observed.pods:
        agent = observed.agents.get(pod.name)
        misread = agent.problem if agent else ""
        if pod.node in nodes and (pod.problem or misread) and pod.phase != "ended":
            since_s = max(record.adopted_s, pod.created_s)
            cause: StartCause = pod.cause if pod.problem else "agent"
            sentence = f"pod {pod.name}: {pod.problem or misread}"
            gpus = _gpus_refused(observed, pod)
            found.setdefault(pod.node, Trouble(pod.node, cause, sentence, since_s, gpus))
    names = {pod.name for pod in observed.pods}
    for refused in observed.refusals:
        is_of_it = refused.node in nodes and refused.at_s >= record.adopted_s
        if is_of_it and refused.name not in names:
            sentence = f"pod {refused.name} is refused: {refused.message}"
            reached = record.plan.gpus_reached[refused.node]
            gpus = reached if _is_too_large(refused.message) else 0
            since_s = max(record.adopted_s, refused.since_s)
            trouble = Trouble(refused.node, "refused", sentence, since_s, gpus)
            found.setdefault(refused.node, trouble)
    return tuple(found[node] for node in sorted(found))


def start_failures(view: View, record: EpochRecord) -> tuple[StartFailure, ...]:
    """Nodes of an epoch that is not sealed on which its pods have failed to start."""
    told = troubles(record, view.observed)
    found = _ended(view, record)
    if found or any(view.now - trouble.since_s > view.settings.pod_problem_s for trouble in told):
        old = [t for t in told if view.now - t.since_s > SHARED_FATE * view.settings.pod_problem_s]
        found += [(trouble.node, trouble.cause, trouble.sentence) for trouble in old]
    rows = {node: (cause, sentence) for node, cause, sentence in reversed(found)}
    generation = view.job.metadata.generation
    gpus = {t.node: t.gpus for t in told if rows.get(t.node) == (t.cause, t.sentence)}
    return tuple(
        StartFailure(node, *rows[node], generation, gpus.get(node, 0)) for node in sorted(rows)
    )


def _gpus_refused(observed: Observed, pod: ObservedPod) -> int:
    """GPUs of its node that the job cannot have together, where the scheduler lacks room; else 0.

    A pod is tied to its node, so what the scheduler lacks it lacks on that one.
    """
    if pod.cause != "scheduling" or not _is_too_large(pod.problem):
        return 0
    running = [p for p in observed.pods_on(pod.node) if p.phase == "running"]
    return pod.gpus + sum(other.gpus for other in running)


def _is_too_large(sentence: str) -> bool:
    """Whether a pod is refused for what it asks for, and not for what it is."""
    return _TOO_LARGE.search(sentence) is not None


def _ended(view: View, record: EpochRecord) -> list[tuple[str, StartCause, str]]:
    """Pods that ended by themselves, or were not ready in time, or not gone in time."""
    observed, settings = view.observed, view.settings
    found: list[tuple[str, StartCause, str]] = []
    for pod in _pods_of(observed, record.plan.nodes):
        is_new = pod.created_s >= record.adopted_s
        words = f": {pod.problem}" if pod.problem else ""
        if pod.deleting:  # its name and its GPUs are free once it is gone, which nobody can force
            leaves_s = record.adopted_s if pod.leaving_at_s is None else pod.leaving_at_s
            if view.now - leaves_s > settings.pod_timeout_s:
                still = f"is still there after {settings.pod_timeout_s:g} s{words}"
                found.append((pod.node, "slow", f"pod {pod.name} was told to end, and {still}"))
            continue
        if is_ready(observed, pod):
            continue
        if is_new and is_pod_lost(observed, pod.name, view.now, settings):
            cause: StartCause = "rejected" if pod.cause == "rejected" else "crash"
            found.append((pod.node, cause, f"pod {pod.name} failed{words}"))
        elif view.now - max(pod.created_s, record.adopted_s) > settings.pod_timeout_s:
            late = f"pod {pod.name} was not ready after {settings.pod_timeout_s:g} s{words}"
            found.append((pod.node, "slow", late))
    return found


def _pods_of(observed: Observed, nodes: Iterable[str]) -> list[ObservedPod]:
    return [pod for node in nodes for pod in observed.pods_on(node)]


def _is_up(observed: Observed, pod: ObservedPod, hosts: Collection[str]) -> bool:
    """Whether its agent was ready once; one that does not answer just now is no matter of start."""
    agent = observed.agents.get(pod.name)
    was_ready = agent is not None and agent.report is not None and agent.report.ready
    return pod.name in hosts or (pod.phase == "running" and was_ready)
