"""How time passes for fake agents: pods start, ranks train, halt, form and switch."""

from __future__ import annotations

import math
from dataclasses import replace

from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.snapshot import ObservedPod
from heddle_operator.state.worth import nodes_of
from planner.plans.pieces import holders_min
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from tests.fakes.agent import FakeAgent
from tests.fakes.planner import fake_plan, fastest, speed_of, without_stragglers, worth_of
from worker.contract import Directive


class FakeWorlds:
    """The part of the fake cluster that moves by itself; `FakeCluster` has the state."""

    # How time passes in it.

    def tick(self, seconds: float = 0.1, answers_plans: bool = True) -> None:
        """Let everything that can happen by itself happen once."""
        self.now += seconds
        self._start_pods()
        if answers_plans:
            self.answer_plans()
        self._halt_broken()
        self._save()
        self._train()
        self._form()
        self._leave()
        self.check()
        self._changed.set()

    def answer_plans(self) -> None:
        for sizes in self.weighed:
            self.worths[sizes] = worth_of(nodes_of(sizes))
        self.weighed.clear()
        for key, request in list(self.asked.items()):
            asked = request.composition
            best = fastest(without_stragglers(asked), request.max_gpus)
            plan = fake_plan(best, self.workload, self.as_pipeline)
            speed = speed_of(plan, asked)
            current = request.current
            most = math.inf if request.max_gpus.total is None else request.max_gpus.total
            fits = (
                current is not None
                and current.gpus <= most
                and all(
                    (p.node, gpu) in {(n.name, g) for n in asked.nodes for g in range(n.gpus)}
                    for p in current.placement
                    for gpu in p.gpus
                )
            )
            now_speed = speed_of(current, asked) if fits and current else None
            held = holders_min(self.workload.model, current) if fits and current else 0
            self.replies[key] = PlanReply(
                plan=plan,
                throughput_samples_s=speed,
                iteration_s=1 / speed,
                group_bytes=tuple(
                    (kind, 7) for kind in sorted({node.gpu_type for node in asked.nodes})
                ),
                current_samples_s=now_speed,
                holders_min=holders_min(self.workload.model, plan),
                current_holders=held,
            )
            del self.asked[key]

    def _start_pods(self) -> None:
        for name, pod in list(self.pods.items()):
            if pod.phase == "pending" and not self._is_kept_from_starting(pod):
                self._pids += 1
                self.pods[name] = replace(pod, phase="running", address=f"{name}:80")
                self.agents[name] = FakeAgent(
                    pod=name, node=pod.node, gpus=pod.gpus, pid=self._pids, store=f"{name}:1"
                )
            elif name in self.agents and not self.agents[name].is_ready:
                self.agents[name].is_ready = True
                self.agents[name].version += 1

    def _is_kept_from_starting(self, pod: ObservedPod) -> bool:
        """Whether its node is broken, or still pulls the image."""
        if pod.node in self.broken:
            cause, words = self.broken[pod.node]
            self.pods[pod.name] = replace(pod, problem=words, cause=cause)
        return pod.node in self.broken or self.now < self.pulls_until_s.get(pod.node, 0.0)

    def _halt_broken(self) -> None:
        for agent in self.agents.values():
            for slot, rank in list(agent.ranks.items()):
                is_inert = self._is_inert(agent.pod, slot)
                waits_for_votes = rank.phase == "switching" and rank.part == "vote"
                if is_inert or rank.error != "broken" or waits_for_votes:
                    continue
                if rank.phase in ("training", "switching"):
                    agent.change(slot, phase="halted", pending_epoch=None)

    def _break_worlds(self, dead: object) -> None:
        """The world of a dead rank is broken for all its ranks."""
        alive = ("training", "switching")
        epochs = {r.epoch for r in dead if r.epoch is not None and r.phase in alive}  # type: ignore[attr-defined]
        for agent, rank in self.holders():
            if rank.epoch in epochs and rank.phase in alive:
                agent.change(rank.slot, error="broken")

    def _train(self) -> None:
        ranks = [(a, r) for a, r in self.holders() if r.phase == "training" and r.error != "broken"]
        in_change = {r.epoch for _, r in self.holders() if r.phase == "switching"}
        if any(self._is_inert(agent.pod, rank.slot) for agent, rank in ranks):
            for agent, _ in ranks:
                self._work(agent, is_slow=False)
            return
        if not ranks or in_change or self._is_busy("step", {agent.pod for agent, _ in ranks}):
            return
        for agent, rank in ranks:
            steps = agent.directive.training.steps if agent.directive else 10**9
            step = min(steps, rank.step + 1)
            phase = "saving" if step >= steps else "training"
            agent.change(rank.slot, step=step, phase=phase, waiting=False)
            if self.speeds:
                agent.measure(rank.slot, self.speeds.get(agent.node, lambda: 1.0)())
        if self._save_at_boundary(ranks):
            for agent, rank in ranks:
                agent.change(rank.slot, phase="suspended")

    def _save(self) -> None:
        """Each rank that trained its last step writes its part of the weights and is done."""
        for agent, rank in self.holders():
            if rank.phase == "saving" and not self._is_inert(agent.pod, rank.slot):
                values = {"error": self.output_error, "error_kind": "output"}
                done = {"phase": "done", "error": None, "error_kind": None}
                agent.change(rank.slot, **(values if self.output_error else done))

    def _form(self) -> None:
        directive = self._newest_directive()
        if directive is None or not self._are_members_present(directive):
            return
        epoch = directive.epoch
        agents = [self.agents[member.pod] for member in directive.members]
        pods = {member.pod for member in directive.members}
        stores = {a.store for a in self.agents.values() if a.pod not in self.silent}
        hangs = directive.store not in stores or any(
            self._is_inert(member.pod, member.slot) for member in directive.members
        )
        if self._ready_to_switch() is not None:
            if hangs or self._is_busy(f"switch {epoch}", pods):
                self._begin_switch(directive)
            else:
                self.switch(directive)
            return
        if hangs or self._fail_to_prepare(directive):
            return
        if self._is_busy(f"prepare {epoch}", pods):
            return
        for agent, member in zip(agents, directive.members, strict=True):
            phase = "prepared" if member.holds is None else agent.ranks[member.slot].phase
            if agent.ranks[member.slot].pending_epoch != epoch:
                agent.change(member.slot, pending_epoch=epoch, phase=phase)

    def _begin_switch(self, directive: Directive) -> None:
        """The old ranks stop at a boundary, and are held up by a slow or a silent member."""
        for member in directive.members:
            agent = self.agents[member.pod]
            rank = agent.ranks[member.slot]
            is_free = not self._is_inert(member.pod, member.slot)
            if is_free and rank.phase == "training" and rank.error != "broken":
                part = "vote" if self.votes else "transfer"
                agent.change(member.slot, phase="switching", part=part, waiting=self.votes)

    def _is_stuck(self, agent: FakeAgent) -> bool:
        """Whether a rank in a switch waits for a member that never answers."""
        members = agent.directive.members if agent.directive else ()
        return any(self._is_inert(member.pod, member.slot) for member in members)

    def _fail_to_prepare(self, directive: Directive) -> bool:
        """Ranks on some nodes cannot prepare, and so nobody can."""
        if self._loads_damaged(directive):
            values = {"failed_epoch": directive.epoch, "error": "a block is damaged"}
            member = directive.members[0]
            self.agents[member.pod].change(member.slot, error_kind="checkpoint", **values)
            return True
        guilty = [m for m in directive.members if m.node in self.failing and m.rank is not None]
        for member in guilty:
            failure = self.failing[member.node]
            values = {"failed_epoch": directive.epoch, "pending_epoch": None}
            said = {"error": failure.error, "error_kind": failure.error_kind}
            self.agents[member.pod].change(member.slot, **values, **said)
        return bool(guilty)

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
        begins = directive.resume or directive.restore
        step = begins.step if begins else max(steps, default=0)
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
                agent.change(member.slot, phase="left", rank=None, epoch=None, pending_epoch=None)
                continue
            agent.change(
                member.slot,
                part="",
                waiting=False,
                failed_epoch=None,
                error_kind=None,
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
