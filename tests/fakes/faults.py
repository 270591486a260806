"""Faults of the fake cluster that close no connection: silence, stopped processes, slowness."""

from __future__ import annotations

from collections.abc import Callable

from heddle_operator.state.actions import SendHalt
from heddle_operator.state.reasons import StartCause
from tests.fakes.agent import FakeAgent
from worker.contract import RankReport


class FakeFaults:
    """The part of the fake cluster that makes members silent or slow."""

    def __init__(self) -> None:
        self.silent: dict[str, float] = {}  # pods: stopped, or cut off from everybody
        self.stopped: dict[tuple[str, int], float] = {}  # ranks, by pod and slot
        self.slow_s: dict[str, float] = {}  # pods: seconds that each part takes their ranks
        self.failing: dict[str, RankReport] = {}  # nodes: how their ranks fail to prepare
        self.broken: dict[str, tuple[StartCause, str]] = {}  # nodes: why no pod starts there
        self.pulls_until_s: dict[str, float] = {}  # nodes: when they have the image
        self.votes = False  # ranks in a switch have moved their state, and wait for votes
        self.speeds: dict[str, Callable[[], float]] = {}  # nodes: of their type's speed, each step
        self.output_error: str | None = None
        self.halts: list[SendHalt] = []
        self._busy_until_s: dict[str, float] = {}

    # What tests do to it.

    def silence(self, pod: str) -> None:
        """An agent and its ranks are stopped, or nobody can reach them any more."""
        self.silent.setdefault(pod, self.now)
        self.unreachable.setdefault(pod, self.now)

    def speak(self, pod: str) -> None:
        """They go on; a world that the others have left is broken."""
        self.silent.pop(pod, None)
        self.unreachable.pop(pod, None)
        for rank in self.agents[pod].ranks.values() if pod in self.agents else ():
            self._wake(self.agents[pod], rank)

    def stop_rank(self, pod: str, slot: int) -> None:
        """A rank process is stopped; its agent answers."""
        self.stopped.setdefault((pod, slot), self.now)

    # What follows from it.

    def _wake(self, agent: FakeAgent, rank: RankReport) -> None:
        others = [r for a, r in self.holders() if (a, r) != (agent, rank)]
        left = any(r.phase == "halted" or (r.epoch or 0) > (rank.epoch or 0) for r in others)
        if rank.phase in ("training", "switching") and left:
            agent.change(rank.slot, error="broken")

    def _is_inert(self, pod: str, slot: int) -> bool:
        return pod in self.silent or (pod, slot) in self.stopped

    def _is_busy(self, key: str, pods: set[str]) -> bool:
        """Whether a part of `key` is not over yet, because a rank of these pods is slow."""
        longest_s = max((self.slow_s.get(pod, 0.0) for pod in pods), default=0.0)
        until_s = self._busy_until_s.setdefault(key, self.now + longest_s - 1e-9)
        if self.now < until_s:
            for pod in pods:
                self._work(self.agents[pod], is_slow=pod in self.slow_s)
            return True
        del self._busy_until_s[key]
        return False

    def _work(self, agent: FakeAgent, is_slow: bool) -> None:
        """Slow ranks get on, the others wait for them; neither is a new version of the report."""
        for slot, rank in agent.ranks.items():
            if not self._is_inert(agent.pod, slot):
                values = {"waiting": not is_slow, "progress": rank.progress + is_slow}
                agent.ranks[slot] = rank.model_copy(update=values)

    def _beats(self, agent: FakeAgent) -> dict[int, float]:
        """Age of the newest heartbeat by slot, where it is not new."""
        return {
            slot: self.now - since_s
            for (pod, slot), since_s in self.stopped.items()
            if pod == agent.pod
        }

    def _halt(self, action: SendHalt) -> None:
        self.halts.append(action)
        agent, epoch = self.agents.get(action.pod), action.halt.epoch
        if agent is None or action.pod in self.silent:
            return
        for slot, rank in list(agent.ranks.items()):
            mine = epoch in (rank.epoch, rank.pending_epoch) or (
                agent.directive is not None and agent.directive.epoch == epoch
            )
            moves = rank.phase in ("training", "switching") and rank.epoch is not None
            if mine and moves and not self._is_inert(action.pod, slot):
                values = {"pending_epoch": None, "error_kind": "lost peer"}
                agent.change(slot, phase="halted", error=action.halt.reason, **values)
                self._break_worlds([rank])

    def training_steps(self) -> set[int]:
        """Completed steps of the ranks that train, and are neither stopped nor cut off."""
        return {
            rank.step
            for agent, rank in self.holders()
            if rank.phase == "training" and rank.error != "broken"
            if not self._is_inert(agent.pod, rank.slot)
        }
