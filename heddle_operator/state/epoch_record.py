"""The record of an epoch: one adopted plan, created once, sealed once, closed once.

Invariant: an operator that starts anew reads from its records all that it must remember.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from heddle_operator.state.reasons import FailedReason, MoveKind, StartCause
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from planner.plans.ranks import Part, RankMap, Seat
from worker.contract import ErrorKind, Member, Reason, Restore, Resume
from worker.training_settings import Checkpointing

# Lost and suspended ones are left behind: whatever ranks hold of them, a checkpoint counts.
Outcome = Literal["open", "live", "aborted", "lost", "suspended", "complete", "failed"]


@dataclass(frozen=True, kw_only=True)
class Seal:
    """How an epoch is formed, written once before the first prepare: directives never differ.

    Attributes:
        members: old and new ranks, as the directive lists them.
        store: where they meet.
        resume: where survivors of a loss go on.
        known_exits: (pod, pid) of rank processes that had ended before; a new one is a failure of
            this epoch.
        restore: the checkpoint that a start goes on from; None: it starts anew, or holds state.
        checkpoint: when and where its ranks save; None: they do not.
    """

    members: tuple[Member, ...]
    store: str
    resume: Resume | None
    sealed_s: float
    known_exits: tuple[tuple[str, int], ...] = ()
    restore: Restore | None = None
    checkpoint: Checkpointing | None = None

    @property
    def first_step(self) -> int | None:
        """Completed steps of the state that its ranks recover or load; None: they do neither."""
        begins = self.resume or self.restore
        return begins.step if begins is not None else None

    @cached_property
    def ranked(self) -> tuple[Member, ...]:
        """The members that the plan gives a rank, in rank order; the others leave."""
        return tuple(member for member in self.members if member.rank is not None)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The pods that a rank of the plan runs in."""
        return frozenset(member.pod for member in self.ranked)

    @cached_property
    def pods(self) -> frozenset[str]:
        """The pods of all members."""
        return frozenset(member.pod for member in self.members)

    @cached_property
    def by_place(self) -> Mapping[tuple[str, int], Member]:
        """The members by pod and slot."""
        return {(member.pod, member.slot): member for member in self.members}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error that is remembered in an epoch's record, so that every operator knows of it.

    Attributes:
        kind: of the error.
        sentence: the rank's own words.
        epoch: whose layout the rank held, or could not prepare.
        step: completed steps then.
        gpus: (node, GPU) of all ranks that said so.
        site: class of the error and the function that it came from; None where no rank told it.
    """

    kind: ErrorKind
    sentence: str
    epoch: int
    step: int
    gpus: tuple[tuple[str, int], ...]
    site: str | None = None

    @property
    def identity(self) -> tuple[ErrorKind, str, int]:
        """What is equal when the same error comes again; a sentence may hold a time or address."""
        return self.kind, self.site or self.sentence, self.step


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A node on which a pod of the job did not start; remembered like a `Failure`.

    Attributes:
        sentence: the cluster's own words.
        generation: of the job's spec then; another template may start where this one did not.
        gpus: without room there, those of its pods that ran included; 0: that is not why.
    """

    node: str
    cause: StartCause
    sentence: str
    generation: int
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One adopted plan.

    Attributes:
        composition: that the plan was searched for.
        outcome: open until its ranks train (live) or it is given up (aborted); complete and failed
            end the job; lost and suspended ones send it back to a checkpoint.
        step_s: predicted seconds of a step; None where nobody predicted it.
        group_bytes: (GPU type of the plan, bytes that NCCL holds there for each communicator), as
            the planner counted them; empty where nobody counted.
        cause: errors of the epoch before, which this one recovers from.
        failures: errors for which this one was given up: its plan fails on these nodes.
        start_failures: nodes for which this one was given up: its pods do not start there.
        steps: that its ranks train to; None in records of earlier versions.
        is_emergency: the plan before it without some replicas; the planner has not been asked yet.
        max_gpus: that the plan was limited to; None: it might use all of the composition.
        moved_by: what forced the job off the plan before; None: nothing did, or nobody wrote it.
        closed_s: when the outcome was written.
        message: why it was given up.
        failed: why the job failed with it; None where it did not.
        step: of one that is lost or suspended, the newest known step; None: nobody told it.
        by_suspension: it was given up because the job was suspended.
        suspended_s: how long the job had been suspended in all when it was adopted, so that older
            records may go; None in records of earlier versions.
    """

    epoch: int
    plan: Plan
    reason: Reason
    composition: Composition
    adopted_s: float
    seal: Seal | None = None
    outcome: Outcome = "open"
    closed_s: float | None = None
    message: str = ""
    step_s: float | None = None
    group_bytes: tuple[tuple[str, int], ...] = ()
    cause: tuple[Failure, ...] = ()
    failures: tuple[Failure, ...] = ()
    start_failures: tuple[StartFailure, ...] = ()
    steps: int | None = None
    is_emergency: bool = False
    max_gpus: int | None = None
    moved_by: MoveKind | None = None
    failed: FailedReason | None = None
    step: int | None = None
    by_suspension: bool = False
    suspended_s: float | None = None

    @property
    def is_left(self) -> bool:
        """Whether the job has gone back to a checkpoint from it, or will."""
        return self.outcome in ("lost", "suspended")

    @property
    def ranked(self) -> tuple[Member, ...]:
        """The ranks of the epoch, in order; none before it is sealed."""
        return self.seal.ranked if self.seal else ()

    @property
    def hosts(self) -> frozenset[str]:
        """The pods that a rank of the epoch runs in; none before it is sealed."""
        return self.seal.hosts if self.seal else frozenset()

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """Where each rank sits."""
        return RankMap.of(self.plan).seats

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Part of the model that each rank holds."""
        return tuple(seat.part for seat in self.seats)


def suspended_s(epochs: Sequence[EpochRecord], now: float) -> float:
    """Seconds in which the job was suspended until now, as far as records tell."""
    found = 0.0
    ends = [*(record.adopted_s for record in epochs[1:]), now]
    for record, end in zip(epochs, ends, strict=False):
        if record.suspended_s is not None:
            found = record.suspended_s
        if record.outcome == "suspended" or record.by_suspension:
            found += end - (record.closed_s or end)
    return found


def newest_live(epochs: Sequence[EpochRecord]) -> EpochRecord | None:
    """The newest epoch on record as live; None where it, or a later one, was left behind."""
    newest = next((r for r in reversed(epochs) if r.outcome == "live" or r.is_left), None)
    return newest if newest is not None and not newest.is_left else None
