"""Causes that force a job off GPUs of its plan; the first one found counts.

Invariant: there is a cause wherever `loses_gpus` is true, and it names a node, a pod or a limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import named
from heddle_operator.rules.candidates import given_back
from heddle_operator.rules.failures import failed_gpus
from heddle_operator.rules.gpu_limits import most_gpus
from heddle_operator.rules.moves.surplus import large_pod, surplus_words
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.reasons import MoveCause
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import ObservedNode
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from planner.wording import counted, joined


def loses_gpus(plan: Plan, composition: Composition) -> bool:
    """Whether a plan uses GPUs that are not there, or are of another type than it was made for."""
    nodes = {node.name: (node.gpu_type, node.gpus) for node in composition.nodes}
    for placed in plan.placement:
        gpu_type, gpus = nodes.get(placed.node, ("", 0))
        planned = plan.templates[placed.template].stages[placed.stage].gpu_type
        if max(placed.gpus) >= gpus or planned != gpu_type:
            return True
    return False


def cause_of_move(view: View, live: EpochRecord, leaving: Mapping[str, str]) -> MoveCause:
    """Why the live plan must be left.

    Args:
        view: the look that is decided on.
        live: the epoch to move from.
        leaving: nodes with a notice, and what it is.
    """
    observed = view.observed
    if view.situation.lost:
        return MoveCause("RanksLost", str(view.situation.lost[0]))
    owed = sorted(live.hosts & given_back(observed))
    if owed:
        words = f"a job of higher priority needs the GPUs of {named('pod', owed)}"
        return MoveCause("PriorityOfOtherJob", words)
    going = [f"node {node} {leaving[node]}" for node in live.plan.nodes if node in leaving]
    if going:
        return MoveCause("NodeLeaving", joined(going))
    most = most_gpus(view.job, observed)
    if most is not None and live.plan.gpus > most:
        words = f"maxGPUs is {most}, and the plan uses {counted(live.plan.gpus, 'GPU')}"
        return MoveCause("MaxGPUs", words)
    large = large_pod(view)
    causes = _of_nodes(view, live)
    if large is not None and not causes:
        return MoveCause(
            "PodTooLarge", f"{surplus_words(view.job, observed)}: pod {large} is replaced"
        )
    if not causes:
        nodes = named("node", live.plan.nodes)
        return MoveCause("FewerGPUs", f"the job may use fewer GPUs of {nodes} than its plan does")
    return MoveCause(causes[0].kind, joined(cause.sentence for cause in causes))


def _of_nodes(view: View, live: EpochRecord) -> list[MoveCause]:
    """Causes that lie in nodes of the live plan, in the order of the plan."""
    planned: dict[str, tuple[str, int]] = {}
    for placed in live.plan.placement:
        gpu_type = live.plan.templates[placed.template].stages[placed.stage].gpu_type
        before = planned.get(placed.node, ("", 0))[1]
        planned[placed.node] = gpu_type, max(before, 1 + max(placed.gpus))
    nodes = {node.name: node for node in view.observed.nodes}
    said, failed = dict(view.observed.unusable), failed_gpus(view)
    found = []
    for name, (gpu_type, needed) in planned.items():
        broken = [gpu for node, gpu in failed if node == name and gpu < needed]
        if broken:
            found.append(MoveCause("GPUFailed", f"GPU {min(broken)} of node {name} failed"))
            continue
        cause = _of_node(view.job, name, nodes.get(name), said.get(name, ""), gpu_type, needed)
        if cause is not None:
            found.append(cause)
    return found


def _of_node(
    job: HeddleJob, name: str, node: ObservedNode | None, said: str, gpu_type: str, needed: int
) -> MoveCause | None:
    if node is None:
        words = f"node {name} {said or 'is gone'}"
        return MoveCause("NodeUnusable" if said else "NodeGone", words)
    allowed = job.spec.elastic.gpu_types.allow
    if allowed and node.gpu_type not in allowed:
        words = f"node {name} has the GPU type {node.gpu_type}, and gpuTypes.allow lacks that"
        return MoveCause("GPUTypeNotAllowed", words)
    if node.gpu_type != gpu_type:
        words = f"node {name} has the GPU type {node.gpu_type} now, and the plan was for {gpu_type}"
        return MoveCause("GPUTypeChanged", words)
    if node.gpus < needed:
        why = f": it {said}" if said else ""
        words = f"node {name} has {counted(node.gpus, 'GPU')} for the job, the plan uses {needed}"
        return MoveCause("FewerGPUs", f"{words}{why}")
    return None
