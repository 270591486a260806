"""One job on many nodes in each state that the operator may find it in, for tests and benchmarks.

Two stages of TP 1 a replica, replicas one after the other over nodes of 8 GPUs: no search is
needed, and each node holds the whole state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from heddle_operator.apis.heddlejob import HeddleJob, load_job
from heddle_operator.state.epoch_record import EpochRecord, Seal
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import AgentView, Observed, ObservedNode, ObservedPod
from planner.cluster.composition import Composition, Node
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from worker.contract import Member, RankReport, Report, StepRecord

GPUS = 8  # of each node
NOW = 100.0
SETTINGS = Settings()


def large_job(nodes: int, **elastic: Any) -> HeddleJob:
    """A job that would take all GPUs of so many nodes, one sample a replica and step."""
    return load_job(
        {
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "metadata": {"name": "big", "namespace": "team", "uid": "u-1", "generation": 1},
            "spec": {
                "model": {"name": "tiny-llama"},
                "data": {"builtin": "text"},
                "training": {"globalBatch": nodes * GPUS // 2, "sequenceLength": 128},
                "steps": 100_000,
                "elastic": {"joinDebounceSeconds": 0, "cooldownSeconds": 0, **elastic},
            },
        }
    )


def node_names(nodes: int, letters: int = 0) -> tuple[str, ...]:
    """Names as long as clouds give them, or of so many letters."""
    return tuple(f"pool-a-node-{index:05d}".ljust(letters, "x") for index in range(nodes))


def large_plan(nodes: int, letters: int = 0) -> Plan:
    """The plan of all GPUs; the names of nodes have at least so many letters."""
    replicas = nodes * GPUS // 2
    seats = [(name, gpu) for name in node_names(nodes, letters) for gpu in range(GPUS)]
    placement = tuple(
        PlacedStage(0, index // 2, index % 2, name, (gpu,))
        for index, (name, gpu) in enumerate(seats)
    )
    stages = (
        Stage(gpu_type="demo-fast", tp=1, layers=3),
        Stage(gpu_type="demo-fast", tp=1, layers=3),
    )
    return Plan((FilledTemplate(stages, 1, (1,) * replicas),), placement)


@dataclass(frozen=True)
class Look:
    """What the operator has of a job when it looks at it."""

    job: HeddleJob
    observed: Observed

    @property
    def record(self) -> EpochRecord:
        """Of the newest epoch."""
        return self.observed.epochs[-1]

    @property
    def view(self) -> View:
        """What is made of the picture."""
        return View.of(self.job, self.observed, NOW, SETTINGS)

    def anew(self) -> Look:
        """The same picture, of which nothing has been looked up yet."""
        return replace(self, observed=replace(self.observed))

    def with_ranks(self, **told: Any) -> Look:
        """The same, all ranks of which report something else."""
        return self._with_reports(
            lambda report: {"ranks": tuple(r.model_copy(update=told) for r in report.ranks)}
        )

    def with_agents(self, **told: Any) -> Look:
        """The same, all agents of which report something else."""
        return self._with_reports(lambda _: told)

    def without_first_node(self) -> Look:
        """The same after a power failure: its pod and its agent are gone, and the node too."""
        seen, first = self.observed, self.observed.pods[0]
        agents = {name: view for name, view in seen.agents.items() if name != first.name}
        nodes = tuple(node for node in seen.nodes if node.name != first.node)
        return replace(self, observed=replace(seen, nodes=nodes, pods=seen.pods[1:], agents=agents))

    def with_record(self, **changed: Any) -> Look:
        """The same with another newest record."""
        newest = replace(self.record, **changed)
        kept = tuple(r for r in self.observed.epochs if r.epoch < newest.epoch)
        return replace(self, observed=replace(self.observed, epochs=(*kept, newest)))

    def _with_reports(self, told: Callable[[Report], dict[str, Any]]) -> Look:
        agents = {
            name: replace(view, report=view.report.model_copy(update=told(view.report)))
            for name, view in self.observed.agents.items()
            if view.report is not None
        }
        return replace(self, observed=replace(self.observed, agents=agents))


def training(nodes: int, letters: int = 0, **elastic: Any) -> Look:
    """The job trains on all nodes, and nothing is to be done."""
    plan, names = large_plan(nodes, letters), node_names(nodes, letters)
    composition = Composition(
        tuple(Node(name=name, gpu_type="demo-fast", gpus=GPUS) for name in names)
    )
    members = tuple(
        Member(
            pod=f"big-{seat.node}-0", slot=seat.gpu, node=seat.node, gpu=seat.gpu, rank=rank,
            holds=1,
        )
        for rank, seat in enumerate(RankMap.of(plan).seats)
    )  # fmt: skip
    record = EpochRecord(
        epoch=2,
        plan=plan,
        reason="join",
        composition=composition,
        adopted_s=0.0,
        seal=Seal(members=members, store="10.0.0.1:1234", resume=None, sealed_s=1.0),
        outcome="live",
        closed_s=2.0,
        step_s=0.5,
        steps=100_000,
    )
    by_pod: dict[str, list[Member]] = {}
    for member in members:
        by_pod.setdefault(member.pod, []).append(member)
    observed = Observed(
        nodes=tuple(ObservedNode(name=name, gpu_type="demo-fast", gpus=GPUS) for name in names),
        pods=tuple(
            ObservedPod(
                name=f"big-{name}-0",
                node=name,
                ordinal=0,
                gpus=GPUS,
                phase="running",
                address=f"10.{i >> 8}.{i & 255}.1:8470",
            )
            for i, name in enumerate(names)
        ),
        epochs=(record,),
        agents={pod: _view(pod, rows, plan.digest) for pod, rows in by_pod.items()},
    )
    return Look(large_job(nodes, **elastic), observed)


def looks(nodes: int, letters: int = 0) -> Iterator[tuple[str, Look]]:
    """The job in every state of its life, by name; nodes are named as in `node_names`."""
    trains = training(nodes, letters)
    yield "training", trains
    lost = trains.without_first_node()
    yield "a node is lost", lost
    halted = lost.with_ranks(phase="halted")
    yield "all others have halted", halted
    yield "a node is cordoned", _with_first_node(trains, is_cordoned=True)
    yield "a node leaves", _with_first_node(trains, leaving_at_s=NOW + 30)
    yield "nothing answers", replace(trains, observed=_unreachable(trains.observed))
    forming = trains.with_record(epoch=3, outcome="open", closed_s=None)
    yield "an epoch is being prepared", forming
    told = forming.with_agents(epoch=3, phase="prepare")
    yield "all are prepared", told.with_ranks(pending_epoch=3)
    switching = forming.with_agents(epoch=3, phase="switch").with_ranks(epoch=3)
    yield "an epoch is live unsaid", switching
    pending = trains.with_record(epoch=3, outcome="open", closed_s=None, seal=None)
    yield "an epoch is to be sealed", pending
    bare = replace(pending.observed, pods=(), agents={}, epochs=(pending.record,))
    yield "pods are to be created", replace(pending, observed=bare)
    tried = trains.with_record(epoch=3, outcome="aborted", closed_s=50.0)
    yield "an attempt was given up", tried.with_agents(epoch=3, phase="prepare")
    cut = halted.with_record(epoch=4, outcome="aborted", closed_s=50.0, reason="loss")
    yield "halves cannot meet", replace(cut, observed=replace(cut.observed, epochs=(
        *halted.observed.epochs, _among(cut.record, 1)
    )))  # fmt: skip
    yield "all steps are trained", trains.with_ranks(phase="done", step=100_000)


def _among(record: EpochRecord, first: int) -> EpochRecord:
    """A record without the members of its first nodes."""
    assert record.seal is not None
    names = set(record.plan.nodes[first:])
    members = tuple(member for member in record.seal.members if member.node in names)
    return replace(record, seal=replace(record.seal, members=members))


def _with_first_node(look: Look, **changed: Any) -> Look:
    first, *others = look.observed.nodes
    nodes = (replace(first, **changed), *others)
    return replace(look, observed=replace(look.observed, nodes=nodes))


def _unreachable(observed: Observed) -> Observed:
    views = observed.agents.items()
    return replace(
        observed,
        agents={pod: replace(view, unreachable_since_s=NOW - 2.0) for pod, view in views},
    )


def _view(pod: str, members: list[Member], digest: str) -> AgentView:
    ranks = tuple(
        RankReport(
            slot=member.slot, pid=100 + member.slot, started_s=0.0, phase="training",
            rank=member.rank, epoch=2, step=17, progress=1000, compute_s=0.3,
        )
        for member in sorted(members, key=lambda member: member.slot)
    )  # fmt: skip
    steps = tuple(
        StepRecord(
            step=step, epoch=2, loss=2.0, gradient_norm=1.0, start_s=0.5 * step,
            end_s=0.5 * step + 0.5, samples=1, learning_rate=1e-3,
        )
        for step in (range(10) if members[0].rank == 0 else ())
    )  # fmt: skip
    report = Report(
        job="big", pod=pod, node=members[0].node, version=5, agent_pid=9, agent_started_s=0.0,
        fork_server_pid=10, store_pid=11, store="10.0.0.1:1234", ready=True, epoch=2,
        phase="switch", plan_digest=digest, ranks=ranks, steps=steps,
    )  # fmt: skip
    return AgentView(
        pod=pod,
        report=report,
        unreachable_since_s=None,
        heard_s=NOW,
        progressed_s={rank.slot: 99.0 for rank in ranks},
    )
