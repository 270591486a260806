"""A cluster in memory, with a planner and agents that follow worker/contract.py.

It refuses what the real thing refuses (admission is the worker's own), and it checks what must
never happen: two live epochs, two ranks on one GPU, a directive that lies about what a rank holds,
a piece that nobody
holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from heddle_operator.actions import (
    Action,
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    RecordEvent,
    RequestPlan,
    SealEpoch,
    SendDirective,
)
from heddle_operator.api import HeddleJob, load_job
from heddle_operator.decide import DEFAULTS, decide
from heddle_operator.decision import Decision
from heddle_operator.errors import ClusterConflict
from heddle_operator.records import EpochRecords
from heddle_operator.settings import Settings
from heddle_operator.snapshot import (
    AgentView,
    Observed,
    ObservedNode,
    ObservedPod,
    PlanKey,
    PlanReply,
)
from planner.composition import Composition
from planner.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.ranks import RankMap
from planner.workload import MODELS, Workload
from worker.admission import Refused, admit, advances, read_directive
from worker.contract import Directive, RankExit, RankReport, Report

SPEEDS = {"demo-fast": 2.0, "demo-slow": 0.01}
MODEL = MODELS["tiny-llama"]


def fake_plan(composition: Composition, workload: Workload, as_pipeline: bool = False) -> Plan:
    """One replica on each GPU, or one pipeline through as many GPUs as there are layers."""
    places = [(n, gpu) for n in composition.nodes for gpu in range(n.gpus)]
    if as_pipeline:
        places = places[: workload.model.layers]
        share, more = divmod(workload.model.layers, len(places))
        stages = tuple(Stage(n.gpu_type, 1, share + (s < more)) for s, (n, _) in enumerate(places))
        placement = [PlacedStage(0, 0, s, n.name, (gpu,)) for s, (n, gpu) in enumerate(places)]
        return Plan((FilledTemplate(stages, 1, (workload.global_batch,)),), tuple(placement))
    places = places[: workload.global_batch]
    share, more = divmod(workload.global_batch, len(places))
    templates = tuple(
        FilledTemplate((Stage(n.gpu_type, 1, workload.model.layers),), 1, (share + (t < more),))
        for t, (n, _) in enumerate(places)
    )
    return Plan(
        templates,
        tuple(PlacedStage(t, 0, 0, n.name, (gpu,)) for t, (n, gpu) in enumerate(places)),
    )


@dataclass
class FakeAgent:
    """One pod's agent with its ranks."""

    pod: str
    node: str
    gpus: int
    pid: int
    is_ready: bool = False
    version: int = 1
    store: str = ""
    directive: Directive | None = None
    ranks: dict[int, RankReport] = field(default_factory=dict)
    exits: list[RankExit] = field(default_factory=list)
    leaving_at_s: float | None = None

    def report(self, job: str) -> Report:
        """What a GET of the report answers."""
        directive = self.directive
        return Report(
            job=job,
            pod=self.pod,
            node=self.node,
            version=self.version,
            agent_pid=self.pid,
            agent_started_s=0.0,
            store=self.store if self.is_ready else None,
            ready=self.is_ready,
            leaving_at_s=self.leaving_at_s,
            epoch=directive.epoch if directive else None,
            phase=directive.phase if directive else None,
            plan_digest=directive.plan_digest if directive else None,
            ranks=tuple(self.ranks[slot] for slot in sorted(self.ranks)),
            exits=tuple(self.exits),
        )

    def change(self, slot: int, **values: object) -> None:
        """Change one rank's report."""
        self.ranks[slot] = self.ranks[slot].model_copy(update=values)
        self.version += 1


class FakeCluster:
    """The seam `Cluster` in memory; time is a number that tests advance."""

    def __init__(self, job: str, workload: Workload, as_pipeline: bool = False) -> None:
        self.job = job
        self.workload = workload
        self.as_pipeline = as_pipeline
        self.now = 0.0
        self.nodes: dict[str, ObservedNode] = {}
        self.pods: dict[str, ObservedPod] = {}
        self.records = EpochRecords()
        self.agents: dict[str, FakeAgent] = {}
        self.views: dict[str, AgentView] = {}
        self.replies: dict[PlanKey, PlanReply] = {}
        self.asked: dict[PlanKey, RequestPlan] = {}
        self.events: dict[str, RecordEvent] = {}
        self.created: list[str] = []
        self.refusals: list[Refused] = []
        self.unreachable: dict[str, float] = {}
        self.frozen: set[str] = set()
        self._pids = 100
        self._changed = asyncio.Event()

    # What tests do to it.

    def add_node(self, name: str, gpu_type: str = "demo-fast", gpus: int = 1) -> None:
        self.nodes[name] = ObservedNode(name, gpu_type, gpus, joined_at_s=self.now)
        self._changed.set()

    def drain(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], leaving_at_s=self.now + 30)
        self._changed.set()

    def kill_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        for pod in [pod.name for pod in self.pods.values() if pod.node == name]:
            self.kill_pod(pod)
            self.pods.pop(pod)
        self._changed.set()

    def kill_pod(self, name: str) -> None:
        agent = self.agents.pop(name, None)
        if agent is not None:
            self.pods[name] = replace(self.pods[name], phase="failed")
            self._break_worlds(agent.ranks.values())

    def tear_step(self, applied: int) -> None:
        """Leave a step half done: `applied` ranks applied it, the others hold its gradients."""
        for index, (agent, rank) in enumerate(self.holders()):
            if rank.phase != "training" or rank.error is not None:
                continue
            if index < applied:
                agent.change(rank.slot, step=rank.step + 1, norm_step=rank.step, gradient_norm=1.0)
            else:
                agent.change(rank.slot, gradients_step=rank.step)

    def break_switch(self, flips: int) -> bool:
        """Kill a member while the others flip; only `flips` learn that the vote passed."""
        directive = self._ready_to_switch()
        if directive is None:
            return False
        victim = directive.members[-1]
        self.switch(directive, flips)
        if victim.slot in self.agents[victim.pod].ranks:
            self.kill_rank(victim.pod, victim.slot)
        return True

    def kill_rank(self, pod: str, slot: int, code: int = -9) -> None:
        agent = self.agents[pod]
        rank = agent.ranks.pop(slot)
        agent.exits.append(RankExit(slot=slot, pid=rank.pid, code=code, at_s=self.now))
        agent.version += 1
        if rank.phase != "left":
            self._break_worlds([rank])

    def restart_store(self, pod: str) -> None:
        self._pids += 1
        self.agents[pod].store = f"{pod}:{self._pids}"
        self.agents[pod].version += 1

    def holders(self) -> list[tuple[FakeAgent, RankReport]]:
        return [
            (agent, rank)
            for agent in self.agents.values()
            for rank in agent.ranks.values()
            if rank.epoch is not None and rank.phase != "left"
        ]

    # The seam.

    def snapshot(self) -> Observed:
        """What an operator sees now."""
        for name, agent in self.agents.items():
            if name not in self.unreachable and not (name in self.frozen and name in self.views):
                self.views[name] = AgentView(name, agent.report(self.job), None, self.now)
        views = {}
        for name, view in self.views.items():
            if name in self.pods:
                since = self.unreachable.get(name, None if name in self.agents else self.now)
                views[name] = replace(view, unreachable_since_s=since)
        self.views = views
        return Observed(
            nodes=tuple(self.nodes[name] for name in sorted(self.nodes)),
            pods=tuple(self.pods[name] for name in sorted(self.pods)),
            epochs=self.records.all,
            agents=dict(views),
            replies=dict(self.replies),
            planning=frozenset(self.asked),
        )

    async def observe(self) -> Observed:
        return self.snapshot()

    async def apply(self, action: Action) -> None:
        self.do(action)

    async def wait_change(self, timeout_s: float | None) -> bool:
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def do(self, action: Action) -> None:
        """Apply one action; a repetition changes nothing."""
        match action:
            case AdoptPlan() | SealEpoch() | CloseEpoch():
                self.records.write(action, self.now)
            case CreatePod() if action.name not in self.pods:
                self._create(action)
            case DeletePod():
                self._delete(action.name)
            case RequestPlan() if action.key not in self.replies:
                self.asked[action.key] = action
            case RecordEvent():
                self.events.setdefault(action.key, action)
            case SendDirective():
                self._put(action.pod, action.directive)
            case _:
                pass

    def _create(self, action: CreatePod) -> None:
        assert action.node in self.nodes, f"{action.name} is created on a node that is gone"
        held = sum(p.gpus for p in self.pods.values() if p.node == action.node)
        assert held + action.gpus <= self.nodes[action.node].gpus, "a GPU is given twice"
        self._pids += 1
        self.pods[action.name] = ObservedPod(
            action.name, action.node, action.ordinal, action.gpus, "pending", created_s=self.now
        )
        self.created.append(action.name)

    def _delete(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None:
            current = max((rank.epoch or 0 for _, rank in self.holders()), default=0)
            training = [
                r
                for r in agent.ranks.values()
                if r.phase == "training" and r.epoch == current and r.error is None
            ]
            assert not training, f"{name} is deleted while its ranks train"
            self.kill_pod(name)
        self.pods.pop(name, None)

    def _put(self, pod: str, directive: Directive) -> None:
        agent = self.agents.get(pod)
        if agent is None:
            return
        read = read_directive(directive.model_dump())
        assert not isinstance(read, Refused), f"the operator sent a faulty directive: {read}"
        refused = admit(agent.directive, directive, self.job)
        if refused is not None:
            self.refusals.append(refused)
            return
        if not advances(agent.directive, directive):
            return
        if agent.directive is None or agent.directive.epoch < directive.epoch:
            self._forget_pending(agent)
        agent.directive = directive
        agent.version += 1
        if directive.phase == "abort":
            self._forget_pending(agent)
            return
        for member in directive.members:
            if member.pod != pod:
                continue
            rank = agent.ranks.get(member.slot)
            if directive.phase == "prepare" and member.holds is None and rank is None:
                self._pids += 1
                agent.ranks[member.slot] = RankReport(
                    slot=member.slot, pid=self._pids, started_s=self.now, phase="starting"
                )

    def _forget_pending(self, agent: FakeAgent) -> None:
        for slot, rank in list(agent.ranks.items()):
            if rank.epoch is None:
                self.kill_rank(agent.pod, slot, 0)
            elif rank.pending_epoch is not None:
                agent.change(slot, pending_epoch=None)

    # How time passes in it.

    def tick(self, seconds: float = 0.1, answers_plans: bool = True) -> None:
        """Let everything that can happen by itself happen once."""
        self.now += seconds
        self._start_pods()
        if answers_plans:
            self.answer_plans()
        self._halt_broken()
        self._train()
        self._form()
        self._leave()
        self.check()
        self._changed.set()

    def answer_plans(self) -> None:
        for key, request in list(self.asked.items()):
            composition = request.composition
            plan = fake_plan(composition, self.workload, self.as_pipeline)
            speed = sum(SPEEDS[t.stages[0].gpu_type] * t.replicas for t in plan.templates)
            current = request.current
            fits = current is not None and all(
                (p.node, gpu) in {(n.name, g) for n in composition.nodes for g in range(n.gpus)}
                for p in current.placement
                for gpu in p.gpus
            )
            now_speed = (
                sum(SPEEDS[t.stages[0].gpu_type] * t.replicas for t in current.templates)
                if fits and current
                else None
            )
            self.replies[key] = PlanReply(plan, speed, 1 / speed, 1 / speed, now_speed, 1)
            del self.asked[key]

    def _start_pods(self) -> None:
        for name, pod in list(self.pods.items()):
            if pod.phase == "pending":
                self._pids += 1
                self.pods[name] = replace(pod, phase="running", address=f"{name}:80")
                self.agents[name] = FakeAgent(
                    name, pod.node, pod.gpus, self._pids, store=f"{name}:1"
                )
            elif name in self.agents and not self.agents[name].is_ready:
                self.agents[name].is_ready = True
                self.agents[name].version += 1

    def _halt_broken(self) -> None:
        for agent in self.agents.values():
            for slot, rank in list(agent.ranks.items()):
                if rank.error == "broken" and rank.phase in ("training", "switching"):
                    agent.change(slot, phase="halted", pending_epoch=None)

    def _break_worlds(self, dead: object) -> None:
        """The world of a dead rank is broken for all its ranks."""
        epochs = {r.epoch for r in dead if r.epoch is not None and r.phase == "training"}  # type: ignore[attr-defined]
        for agent, rank in self.holders():
            if rank.epoch in epochs and rank.phase == "training":
                agent.change(rank.slot, error="broken")

    def _train(self) -> None:
        ranks = [(a, r) for a, r in self.holders() if r.phase == "training" and r.error is None]
        for agent, rank in ranks:
            done = rank.step + 1 >= (agent.directive.training.steps if agent.directive else 10**9)
            agent.change(rank.slot, step=rank.step + 1, phase="done" if done else "training")

    def _form(self) -> None:
        directive = self._newest_directive()
        if directive is None or not self._are_members_present(directive):
            return
        if self._ready_to_switch() is not None:
            self.switch(directive)
            return
        epoch = directive.epoch
        agents = [self.agents[member.pod] for member in directive.members]
        stores = {agent.store for agent in self.agents.values()}
        if directive.store not in stores:
            return
        for agent, member in zip(agents, directive.members, strict=True):
            phase = "prepared" if member.holds is None else agent.ranks[member.slot].phase
            if agent.ranks[member.slot].pending_epoch != epoch:
                agent.change(member.slot, pending_epoch=epoch, phase=phase)

    def _newest_directive(self) -> Directive | None:
        """The newest directive that is not aborted and that nobody has switched to."""
        found = [a.directive for a in self.agents.values() if a.directive is not None]
        newest = max(found, key=lambda directive: directive.epoch, default=None)
        if newest is None or any(rank.epoch == newest.epoch for _, rank in self.holders()):
            return None
        told = [d for d in found if d.epoch == newest.epoch]
        return None if any(d.phase == "abort" for d in told) else newest

    def _ready_to_switch(self) -> Directive | None:
        directive = self._newest_directive()
        if directive is None or not self._are_members_present(directive):
            return None
        agents = [self.agents[member.pod] for member in directive.members]
        prepared = all(
            agent.ranks[member.slot].pending_epoch == directive.epoch
            for agent, member in zip(agents, directive.members, strict=True)
        )
        told = any(a.directive is not None and a.directive.phase == "switch" for a in agents)
        return directive if prepared and told else None

    def _are_members_present(self, directive: Directive) -> bool:
        for member in directive.members:
            agent = self.agents.get(member.pod)
            if agent is None or agent.directive is None or agent.directive.epoch != directive.epoch:
                return False
            rank = agent.ranks.get(member.slot)
            if rank is None or rank.epoch != member.holds:
                return False
            if rank.error == "broken" and directive.reason != "loss":
                return False
        return True

    def switch(self, directive: Directive, flips: int | None = None) -> None:
        """All members flip; with `flips` only the first so many do before their world breaks."""
        held = [m for m in directive.members if m.holds is not None]
        steps = {self.agents[m.pod].ranks[m.slot].step for m in held}
        step = directive.resume.step if directive.resume else max(steps, default=0)
        if directive.reason != "loss":
            assert len(steps) <= 1, f"the switch found its ranks at steps {steps}"
            newest = max((r.epoch or 0 for _, r in self.holders()), default=0)
            assert all(m.holds == newest for m in held), "a member holds an older epoch"
        self._check_pieces(directive)
        for index, member in enumerate(directive.members):
            agent = self.agents[member.pod]
            broken = flips is not None
            if flips is not None and index >= flips:
                if member.holds is not None:
                    agent.change(
                        member.slot, phase="halted", pending_epoch=None, error="broken", step=step
                    )
                else:
                    self.kill_rank(member.pod, member.slot, 1)
                continue
            if member.rank is None:
                agent.change(member.slot, phase="left", pending_epoch=None)
                continue
            agent.change(
                member.slot,
                phase="halted" if broken else "training",
                error="broken" if broken else None,
                rank=member.rank,
                epoch=directive.epoch,
                pending_epoch=None,
                gradients_step=None,
                norm_step=None,
                gradient_norm=None,
                step=step,
            )

    def _check_pieces(self, directive: Directive) -> None:
        if directive.reason == "start":
            return
        seats = {
            epoch: RankMap.of(Plan.from_json(layout)).seats
            for epoch, layout in directive.layouts.items()
        }
        layers: set[int] = set()
        for member in directive.members:
            if member.holds is not None:
                for seat in seats[member.holds]:
                    if (seat.node, seat.gpu) == (member.node, member.gpu):
                        layers.update(seat.layers)
        assert layers == set(range(self.workload.model.layers + 2)), "a piece has no holder"

    def _leave(self) -> None:
        for agent in list(self.agents.values()):
            for slot, rank in list(agent.ranks.items()):
                if rank.phase == "left":
                    self.kill_rank(agent.pod, slot, 0)

    def check(self) -> None:
        """What must never be, whatever the operator does."""
        training = {r.epoch for _, r in self.holders() if r.phase == "training" and r.error is None}
        assert len(training) <= 1, f"epochs {training} train at the same time"
        spots = [(p.node, p.ordinal) for p in self.pods.values()]
        assert len(set(spots)) == len(spots), "two pods stand on the same GPUs"
        for node in self.nodes.values():
            granted = sum(pod.gpus for pod in self.pods.values() if pod.node == node.name)
            assert granted <= node.gpus, (
                f"{granted} GPUs of {node.name} are granted, it has {node.gpus}"
            )
        numbers = [record.epoch for record in self.records.all]
        assert numbers == sorted(set(numbers)), "an epoch number is used twice"


class FakeOperator:
    """The loop without effects: observe, decide, apply."""

    def __init__(self, job: HeddleJob, cluster: FakeCluster, settings: Settings = DEFAULTS) -> None:
        self.job = job
        self.cluster = cluster
        self.settings = settings
        self.decision = Decision((), "Pending", "")

    def look(self) -> Decision:
        """One pass; a lost race is forgotten, as the next pass sees it."""
        cluster = self.cluster
        self.decision = decide(self.job, cluster.snapshot(), cluster.now, self.settings)
        for action in self.decision.actions:
            with contextlib.suppress(ClusterConflict):
                cluster.do(action)
        return self.decision

    def run(self, until: Callable[[Decision], bool], passes: int = 60) -> Decision:
        """Pass and tick until the decision is as wanted."""
        for _ in range(passes):
            if until(self.look()):
                return self.decision
            self.cluster.tick()
        raise AssertionError(
            f"after {passes} passes: {self.decision.phase}, {self.decision.reason}"
        )

    def settle(self, passes: int = 60) -> Decision:
        """Pass and tick until nothing is left to do and no time-out is near."""
        quiet = 0
        for _ in range(passes):
            busy = [a for a in self.look().actions if not isinstance(a, RecordEvent)]
            quiet = 0 if busy else quiet + 1
            if quiet >= 4 and self.decision.phase in ("Running", "Complete", "Failed"):
                return self.decision
            self.cluster.tick()
        raise AssertionError(f"not settled: {self.decision.phase}, {self.decision.reason}")


def a_job(**elastic: object) -> HeddleJob:
    """A job on the tiny model that follows the cluster at once, unless told otherwise."""
    wishes = {"joinDebounceSeconds": 0, "cooldownSeconds": 0, **elastic}
    return load_job(
        {
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "metadata": {"name": "tiny"},
            "spec": {
                "model": {"name": "tiny-llama"},
                "data": {"builtin": "text"},
                "training": {"globalBatch": 32, "sequenceLength": 128},
                "steps": 1000,
                "elastic": wishes,
            },
        }
    )


def a_cluster(job: HeddleJob, *nodes: str, as_pipeline: bool = False) -> FakeCluster:
    """A cluster with nodes of one GPU each."""
    cluster = FakeCluster(job.name, job.workload, as_pipeline)
    for node in nodes:
        cluster.add_node(node)
    return cluster
