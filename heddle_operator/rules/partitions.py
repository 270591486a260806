"""Nodes that are well and cannot reach each other: whom to leave out, and who comes back too late.

After a loss the operator first plans for every node that answers.  If ranks of such a plan could
not meet, although all their agents still answer, some link between them is cut; nobody can say
which, so each further attempt leaves out another node, the smallest first, as long as the rest
holds the whole state.  What was left out stands halted at a past step, and goes.
Invariant: pure in the records; an operator that starts anew makes the same attempt.
"""

from __future__ import annotations

from heddle_operator.rules.coverage import Survivors
from heddle_operator.state.actions import DeletePod
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import Holder, Situation, View
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition


def without_partitioned(view: View, composition: Composition) -> Composition:
    """The composition for the next attempt after a loss."""
    observed, situation = view.observed, view.situation
    attempts = sum(_could_not_meet(observed, record) for record in _since_live(observed, situation))
    if not attempts:
        return composition
    survivors = Survivors.of(view.job.workload.model, situation.holders, observed)
    pods: dict[str, set[str]] = {}
    for holder in situation.holders:
        pods.setdefault(holder.node, set()).add(holder.pod)
    left_out: list[str] = []
    for node in sorted(composition.nodes, key=lambda node: (node.gpus, node.name)):
        gpus = composition.gpus - node.gpus
        if gpus >= view.job.spec.elastic.min_gpus and not survivors.problem(
            pods.get(node.name, ())
        ):
            left_out.append(node.name)
    # The whole is tried again in each round: the link may have come back.
    turn = (attempts - 1) % (len(left_out) + 1)
    return composition.without(left_out[turn : turn + 1])


def needed_holders(view: View, record: EpochRecord) -> tuple[Holder, ...]:
    """Ranks that take part in an epoch; after a loss only nodes of its plan's, if they hold all."""
    situation = view.situation
    if record.reason != "loss":
        return situation.holders
    nodes = {node.name for node in record.composition.nodes}
    inside = tuple(holder for holder in situation.holders if holder.node in nodes)
    problem = Survivors.of(view.job.workload.model, inside, view.observed).problem()
    return situation.holders if problem else inside


def outdated_pods(observed: Observed, situation: Situation) -> tuple[DeletePod, ...]:
    """Pods whose ranks hold only what the others are past; a live rank keeps its pod."""
    hosting = situation.live.hosts if situation.live else frozenset()
    holding = {holder.pod for holder in situation.holders}
    names = sorted({holder.pod for holder in situation.outdated} - hosting - holding)
    pods = [observed.pod(name) for name in names]
    return tuple(
        DeletePod(pod.name, "its ranks hold the state of a past epoch")
        for pod in pods
        if pod is not None and not pod.deleting
    )


def _since_live(observed: Observed, situation: Situation) -> list[EpochRecord]:
    after = situation.live.epoch if situation.live else 0
    return [record for record in observed.epochs if record.epoch > after]


def _could_not_meet(observed: Observed, record: EpochRecord) -> bool:
    """Whether a recovery was given up though every member's agent answers."""
    if record.outcome != "aborted" or record.reason != "loss" or record.seal is None:
        return False
    if record.failures:  # it is known why
        return False
    return all(seen.report is not None for seen in observed.members(record))
