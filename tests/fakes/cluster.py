"""A cluster in memory, with a planner and agents that follow worker/contract.py.

It refuses what the real thing refuses (admission is the worker's own), and it checks what must
never happen: two live epochs, two ranks on one GPU, a directive that lies about what a rank holds,
a piece that nobody
holds.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from heddle_operator.state.actions import (
    Action,
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    EndPod,
    PruneEpoch,
    RecordEvent,
    RequestPlan,
    SealEpoch,
    SendDirective,
    SendHalt,
    SendLook,
    SendSave,
    SendSuspend,
)
from heddle_operator.state.epoch_records import EpochRecords
from heddle_operator.state.plan_reply import PlanKey, PlanReply
from heddle_operator.state.progress import not_finite_steps, progress_times, save_times
from heddle_operator.state.snapshot import AgentView, Observed, ObservedNode, ObservedPod
from heddle_operator.state.worth import NodeSizes, Worth
from planner.model.workload import Workload
from tests.fakes.agent import FakeAgent
from tests.fakes.faults import FakeFaults
from tests.fakes.saves import FakeSaves
from tests.fakes.worlds import FakeWorlds
from worker.agent.admission import Refused, admit, advances, read_directive
from worker.contract import Directive, RankExit, RankReport, Reason


class FakeCluster(FakeWorlds, FakeFaults, FakeSaves):
    """The seam `Cluster` in memory; time is a number that tests advance."""

    def __init__(self, job: str, workload: Workload, as_pipeline: bool = False) -> None:
        FakeFaults.__init__(self)
        FakeSaves.__init__(self)
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
        self.worths: dict[NodeSizes, Worth] = {}
        self.weighed: list[NodeSizes] = []
        self.events: dict[str, RecordEvent] = {}
        self.created: list[str] = []
        self.refusals: list[Refused] = []
        self.pruned: set[int] = set()
        self.unreachable: dict[str, float] = {}
        self.frozen: set[str] = set()
        self._pids = 100
        self._changed = asyncio.Event()

    # What tests do to it.

    def add_node(self, name: str, gpu_type: str = "demo-fast", gpus: int = 1) -> None:
        self.nodes[name] = ObservedNode(
            name=name, gpu_type=gpu_type, gpus=gpus, joined_at_s=self.now
        )
        self._changed.set()

    def drain(self, name: str, notice_s: float = math.inf) -> None:
        self.nodes[name] = replace(self.nodes[name], leaving_at_s=self.now + notice_s)
        self._changed.set()

    def cordon(self, name: str, is_cordoned: bool = True) -> None:
        self.nodes[name] = replace(self.nodes[name], is_cordoned=is_cordoned)
        self._changed.set()

    def kill_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        for pod in [pod.name for pod in self.pods.values() if pod.node == name]:
            self.kill_pod(pod)
            self.pods.pop(pod)
        self._changed.set()

    def kill_pod(self, name: str) -> None:
        agent = self.agents.pop(name, None)
        self.silent.pop(name, None)
        self.stopped = {key: at_s for key, at_s in self.stopped.items() if key[0] != name}
        if agent is not None:
            self.unreachable.pop(name, None)
            self.pods[name] = replace(self.pods[name], phase="ended")
            self._break_worlds(agent.ranks.values())

    def tear_step(self, applied: int) -> None:
        """Leave a step half done: `applied` ranks applied it, the others hold its gradients."""
        for index, (agent, rank) in enumerate(self.holders()):
            if rank.phase != "training" or rank.error == "broken":
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
        self.stopped.pop((pod, slot), None)
        told = {
            name: getattr(rank, name)
            for name in ("error", "error_kind", "error_site", "epoch", "step")
        }
        agent.exits.append(RankExit(slot=slot, pid=rank.pid, code=code, at_s=self.now, **told))
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
                view = self.views.get(name)
                report = agent.report(self.job, self._beats(agent), self.now)
                self.views[name] = AgentView(
                    pod=name,
                    report=report,
                    heard_s=self.now,
                    progressed_s=progress_times(view, report, self.now),
                    saves_heard=save_times(view, report, self.now),
                    not_finite=not_finite_steps(view, report),
                )
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
            worths=dict(self.worths),
        )

    def weigh(self, sizes: NodeSizes, _: Reason = "join") -> None:
        """What GPUs of each type are worth, said at the next tick."""
        self.weighed.append(sizes)

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
            case EndPod():
                self._end(action.name)
            case PruneEpoch():
                self._prune(action)
            case RequestPlan() if action.key not in self.replies:
                self.asked[action.key] = action
            case RecordEvent():
                self.events.setdefault(action.key, action)
            case _:
                self._hear(action)

    def _hear(self, action: Action) -> None:
        """What agents are told."""
        match action:
            case SendDirective() if action.pod not in self.silent:
                self._put(action.pod, action.directive)
            case SendHalt():
                self._halt(action)
            case SendLook():
                self._look(action)
            case SendSave():
                self._tell_to_save(action.pod)
            case SendSuspend():
                self._suspend(action.pod)
            case _:
                pass

    def _create(self, action: CreatePod) -> None:
        assert action.node in self.nodes, f"{action.name} is created on a node that is gone"
        held = sum(p.gpus for p in self.pods.values() if p.node == action.node)
        assert held + action.gpus <= self.nodes[action.node].gpus, "a GPU is given twice"
        self._pids += 1
        self.pods[action.name] = ObservedPod(
            name=action.name,
            node=action.node,
            ordinal=action.ordinal,
            gpus=action.gpus,
            phase="pending",
            created_s=self.now,
        )
        self.created.append(action.name)

    def _delete(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None:
            current = max((rank.epoch or 0 for _, rank in self.holders()), default=0)
            training = [
                r
                for r in agent.ranks.values()
                if r.phase == "training" and r.epoch == current and r.error != "broken"
                if not self._is_inert(name, r.slot)
            ]
            assert not training, f"{name} is deleted while its ranks train"
            self.kill_pod(name)
        self.pods.pop(name, None)

    def _end(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None:
            phases = {rank.phase for rank in agent.ranks.values()}
            allowed = {"done", "halted", "left", "prepared", "starting"}
            if any(record.outcome == "failed" for record in self.records.all):
                allowed |= {"training", "switching", "saving"}  # a limit of the job ended it
            assert phases <= allowed or name in self.silent, (
                f"{name} is ended while its ranks train"
            )
            self.kill_pod(name)

    def _prune(self, action: PruneEpoch) -> None:
        held = [(rank.epoch, rank.also_epoch) for _, rank in self.holders()]
        assert not any(action.epoch in epochs for epochs in held), (
            f"the layout of epoch {action.epoch} is still held"
        )
        self.records.prune(action)
        self.pruned.add(action.epoch)

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
                back = rank.phase == "switching" and not self._is_stuck(agent)
                phase = "training" if back else rank.phase
                agent.change(slot, pending_epoch=None, phase=phase)

    def check(self) -> None:
        """What must never be, whatever the operator does."""
        training = {
            rank.epoch
            for agent, rank in self.holders()
            if rank.phase == "training" and rank.error != "broken"
            if not self._is_inert(agent.pod, rank.slot)
        }
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
        assert not self.pruned & set(numbers), "the number of a pruned epoch is used again"
