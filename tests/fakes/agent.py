"""The fake agent of one pod: what the contract lets it say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from worker.contract import Directive, RankExit, RankReport, Report


@dataclass
class FakeAgent:
    """One pod's agent with its ranks."""

    pod: str
    node: str
    gpus: int
    pid: int
    is_ready: bool = False
    is_deaf: bool = False  # its fork server stands still: no rank can start
    version: int = 1
    store: str = ""
    directive: Directive | None = None
    ranks: dict[int, RankReport] = field(default_factory=dict)
    exits: list[RankExit] = field(default_factory=list)
    leaving_at_s: float | None = None

    def report(self, job: str, beats: Mapping[int, float] = MappingProxyType({})) -> Report:
        """What a GET of the report answers; `beats` has ages of heartbeats by slot."""
        directive = self.directive
        return Report(
            job=job,
            pod=self.pod,
            node=self.node,
            version=self.version,
            agent_pid=self.pid,
            agent_started_s=0.0,
            store=self.store if self.is_ready else None,
            ready=self.is_ready and not self.is_deaf,
            leaving_at_s=self.leaving_at_s,
            epoch=directive.epoch if directive else None,
            phase=directive.phase if directive else None,
            plan_digest=directive.plan_digest if directive else None,
            ranks=tuple(
                self.ranks[slot].model_copy(update={"beat_age_s": beats.get(slot, 0.0)})
                for slot in sorted(self.ranks)
            ),
            exits=tuple(self.exits),
        )

    def change(self, slot: int, **values: object) -> None:
        """Change one rank's report."""
        self.ranks[slot] = self.ranks[slot].model_copy(update=values)
        self.version += 1
