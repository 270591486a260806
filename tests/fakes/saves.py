"""Checkpoints of the fake cluster: ranks save, agents look, ranks are suspended."""

from __future__ import annotations

from heddle_operator.state.actions import SendLook
from tests.fakes.agent import FakeAgent
from worker.checkpoint_records import FoundCheckpoint, RefusedCheckpoint, RefusedCode
from worker.contract import Directive, FoundCheckpoints, RankReport, SaveRecord


class FakeSaves:
    """The part of the fake cluster that is a store of checkpoints."""

    def __init__(self) -> None:
        self.store: list[FoundCheckpoint] = []  # the oldest first
        self.store_error: str | None = None  # nothing can be saved
        self.read_error: str | None = None  # nothing can be read
        self.blind: set[str] = set()  # pods that see no checkpoint
        self.damaged: set[str] = set()  # manifests of which a block is damaged
        self.refused: dict[str, tuple[RefusedCode, str]] = {}  # manifests, and why
        self.looks: list[SendLook] = []
        self.pods_ahead_s = 0.0  # of the pods' clocks, before the operator's

    def _look(self, action: SendLook) -> None:
        self.looks.append(action)
        agent = self.agents.get(action.pod)
        if agent is None or action.pod in self.silent:
            return
        rows = [] if action.pod in self.blind else list(reversed(self.store))
        path = action.look.training.checkpoint
        assert path is not None, "the operator asks for checkpoints of a job without a path"
        agent.looked_s, before = self.now, agent.checkpoints
        agent.checkpoints = FoundCheckpoints(
            epoch=action.look.epoch,
            path=path.path,
            error=self.read_error,
            found=tuple(row for row in rows if row.manifest not in self.refused),
            refused=tuple(
                RefusedCheckpoint(
                    epoch=row.epoch,
                    step=row.step,
                    code=self.refused[row.manifest][0],
                    error=self.refused[row.manifest][1],
                )
                for row in rows
                if row.manifest in self.refused
            ),
        )
        agent.version += agent.checkpoints != before

    def _suspend(self, pod: str) -> None:
        if pod in self.agents and pod not in self.silent:
            self.agents[pod].is_told_to_suspend = True

    def _tell_to_save(self, pod: str) -> None:
        if pod in self.agents and pod not in self.silent:
            self.agents[pod].is_told_to_save = True

    def _save_at_boundary(self, ranks: list[tuple[FakeAgent, RankReport]]) -> bool:
        """What ranks that have just trained a step save; whether they are suspended now."""
        first, rank = ranks[0]
        step = first.ranks[rank.slot].step
        spec = first.directive.training.checkpoint if first.directive else None
        suspends = all(agent.is_told_to_suspend for agent, _ in ranks)
        is_asked = all(agent.is_told_to_save for agent, _ in ranks)
        is_due = spec is not None and spec.every_steps and step % spec.every_steps == 0
        is_due = is_due or is_asked
        if spec is None or not (suspends or is_due):
            return False
        for agent, _ in ranks:
            agent.is_told_to_suspend = agent.is_told_to_suspend and not suspends
            agent.is_told_to_save = False
        epoch = (rank.epoch or 0) + spec.epochs_before
        record = SaveRecord(
            epoch=epoch,
            step=step,
            rank=0,
            outcome="failed" if self.store_error else "saved",
            ended_unix_s=self.now + self.pods_ahead_s,
            num_bytes=8,
            error=self.store_error,
        )
        first.saves = (*first.saves, record)
        first.version += 1
        if self.store_error is None:
            found = FoundCheckpoint(epoch=epoch, step=step, manifest=f"e{epoch}s{step}")
            self.store = [one for one in self.store if one != found] + [found]
        return suspends and self.store_error is None

    def _loads_damaged(self, directive: Directive) -> bool:
        """Whether the ranks cannot prepare, as a block of their checkpoint is damaged."""
        restore = directive.restore
        return restore is not None and restore.manifest in self.damaged
