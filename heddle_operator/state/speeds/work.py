"""Work of each rank of a plan in a step, and the seconds that it measured for it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.snapshot import Observed
from planner.cost.stage import stage_seconds
from planner.errors import UnprofiledConfiguration
from planner.model.shape import ModelShape
from planner.plans.plan import Plan, Stage
from planner.plans.ranks import RankMap
from planner.profiles.profile import Profile
from worker.contract import RankReport


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one rank of a plan in each step.

    Attributes:
        kind: of one micro-batch; equal for ranks that compute the same.
        micro_batches: that it computes, empty ones in lock-step included.
        profiled_s: seconds of one micro-batch by the profile, at speed factor 1; None: unknown.
    """

    node: str
    kind: Hashable
    micro_batches: int
    gpu_type: str
    profiled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A rank's measurement of its own forward and backward passes.

    Attributes:
        seconds: of a step.
        is_late: it emulates a GPU and was late, so that this is no GPU's time.
    """

    work: Work
    seconds: float
    is_late: bool


def work_of(plan: Plan, model: ModelShape, profile: Profile | None = None) -> tuple[Work, ...]:
    """Work of each rank of a plan, in rank order."""
    found = []
    known: dict[Hashable, float | None] = {}
    for seat in RankMap.of(plan).seats:
        template, layers = seat.pipeline.template, seat.layers
        stage = template.stages[seat.stage]
        kinds = tuple(sorted(model.kinds_of(layers.start, layers.stop).items()))
        kind = (stage, template.micro_batch, kinds)
        if kind not in known:
            known[kind] = _profiled_s(profile, model, stage, template.micro_batch, layers)
        found.append(Work(seat.node, kind, seat.pipeline.rounds, stage.gpu_type, known[kind]))
    return tuple(found)


def measured_work(
    observed: Observed, live: EpochRecord, work: tuple[Work, ...]
) -> tuple[Measured, ...]:
    """Of the ranks that train the live epoch and have measured enough steps.

    Args:
        observed: supplies what the ranks measured.
        live: the epoch that they train.
        work: of its ranks, in rank order.
    """
    rows = [
        rank
        for view in observed.agents.values()
        if view.report is not None and view.unreachable_since_s is None
        for rank in view.report.ranks
        if rank.epoch == live.epoch and rank.phase == "training"
    ]
    return tuple(
        Measured(work[rank.rank], seconds, rank.overruns > 0)
        for rank in rows
        if rank.rank is not None and 0 <= rank.rank < len(work)
        if (seconds := _seconds(rank)) is not None
    )


def faster_median(paces: Iterable[float]) -> float:
    """The median; of an even number the faster: where half of the nodes are slow, that they are.

    Args:
        paces: seconds, or what is larger where it is slower.
    """
    ordered = sorted(paces)
    return ordered[(len(ordered) - 1) // 2]


def _profiled_s(
    profile: Profile | None, model: ModelShape, stage: Stage, micro_batch: int, layers: range
) -> float | None:
    if profile is None or stage.ep > 1:  # experts on several GPUs: time depends on their places
        return None
    try:
        return sum(stage_seconds(profile, model, stage, micro_batch, layers))
    except UnprofiledConfiguration:
        return None


def _seconds(rank: RankReport) -> float | None:
    seconds = rank.compute_s
    return seconds if seconds is not None and 0 < seconds < math.inf else None
