"""GPUs that the pods of a job hold above `maxGPUs`: a smaller pod takes the place of a large one.

A pod has its GPUs for life, so a plan that shrinks may leave some of them idle in a pod that still
has ranks.  Such a pod is left like one that must go: for free GPUs of other nodes, else for fewer
GPUs until it is gone, and a pod of the right size is made after it.
Invariant: only the last pod of a node is left, because a plan counts a node's GPUs from 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed, ObservedPod
from planner.cluster.composition import Composition
from planner.wording import counted


def held_above_limit(job: HeddleJob, observed: Observed) -> int:
    """GPUs that the pods hold above `maxGPUs`; 0 where they hold no more than that."""
    most = job.spec.elastic.max_gpus
    return 0 if most is None else max(0, sum(pod.gpus for pod in _live(observed)) - most)


def large_pod(view: View) -> str | None:
    """The pod with ranks that has the most idle GPUs, while the pods hold more than `maxGPUs`.

    None while a pod without ranks is there: it goes first.
    """
    live = view.situation.live
    if live is None or live.outcome != "live" or not held_above_limit(view.job, view.observed):
        return None
    pods = _live(view.observed)
    if any(pod.name not in live.hosts for pod in pods):
        return None
    used = Counter(member.pod for member in live.ranked)
    last = {pod.node: pod for pod in sorted(pods, key=lambda pod: pod.ordinal)}
    idle = [(pod.gpus - used[pod.name], pod.name) for pod in last.values()]
    most, name = max(idle, default=(0, ""))
    return name if most > 0 else None


def replaced_gpus(view: View) -> int:
    """GPUs that the job holds beside those of its plan while a smaller pod is made elsewhere."""
    name = large_pod(view)
    return next((pod.gpus for pod in view.observed.pods if pod.name == name), 0)


def without_pod(observed: Observed, name: str, composition: Composition) -> Composition:
    """The composition without the GPUs of a pod, and without those that follow them on its node."""
    pods = {pod.name: pod for pod in observed.pods}
    node = pods[name].node
    before = sum(p.gpus for p in _live(observed) if p.node == node and p.name != name)
    return Composition(
        tuple(
            replace(row, gpus=min(row.gpus, before)) if row.name == node else row
            for row in composition.nodes
            if row.name != node or before > 0
        )
    )


def surplus_words(job: HeddleJob, observed: Observed) -> str:
    """Sentence with the GPUs that pods hold and may hold; "" where they hold no more."""
    above = held_above_limit(job, observed)
    if not above:
        return ""
    most = job.spec.elastic.max_gpus
    assert most is not None
    return f"the pods hold {counted(most + above, 'GPU')}, maxGPUs is {most}"


def _live(observed: Observed) -> list[ObservedPod]:
    return [pod for pod in observed.pods if pod.phase != "ended" and not pod.deleting]
