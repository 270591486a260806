"""The fake agent of one pod: what the contract lets it say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from worker.agent.compute_times import ComputeTimes
from worker.contract import Directive, FoundCheckpoints, RankExit, RankReport, Report, SaveRecord
from worker.gpu_wire import WireName

MICRO_BATCH_S = 0.01  # that a rank computes on one micro-batch, whatever its stage


@dataclass(kw_only=True)
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
    computing: dict[int, ComputeTimes] = field(default_factory=dict)
    checkpoints: FoundCheckpoints | None = None
    looked_s: float = 0.0
    saves: tuple[SaveRecord, ...] = ()
    is_told_to_suspend: bool = False
    is_told_to_save: bool = False
    wire: WireName | None = None
    shares: tuple[str, tuple[int, ...]] = ("", ())  # a plan, and its ranks' micro-batches

    def report(
        self, job: str, beats: Mapping[int, float] = MappingProxyType({}), now: float = 0.0
    ) -> Report:
        """What a GET of the report answers; `beats` has ages of heartbeats by slot."""
        directive, seen = self.directive, self.checkpoints
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
            looks=True,
            wire=self.wire,
            checkpoints=seen and seen.model_copy(update={"age_s": now - self.looked_s}),
            saves=self.saves,
        )

    def measure(self, slot: int, speed: float) -> None:
        """A rank tells what its newest step took, on a device of that speed."""
        rank, directive = self.ranks[slot], self.directive
        if rank.rank is None or directive is None or directive.epoch != rank.epoch:
            return
        if self.shares[0] != directive.plan_digest:
            self.shares = (directive.plan_digest, _shares(directive))
        seconds = MICRO_BATCH_S * self.shares[1][rank.rank] / speed
        times = self.computing.setdefault(slot, ComputeTimes())
        times.add(directive.epoch, seconds)
        self.ranks[slot] = rank.model_copy(update={"compute_s": times.median_s(directive.epoch)})

    def change(self, slot: int, **values: object) -> None:
        """Change one rank's report."""
        self.ranks[slot] = self.ranks[slot].model_copy(update=values)
        self.version += 1


def _shares(directive: Directive) -> tuple[int, ...]:
    """Micro-batches of each rank of a plan."""
    seats = RankMap.of(Plan.from_json(directive.plan)).seats
    return tuple(seat.pipeline.num_micro_batches for seat in seats)
