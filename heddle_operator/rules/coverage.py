"""State that survivors hold together, and pieces that are lost without some of them.

Ranks that hold the same part of the model count as one: a job has thousands of them, and few parts.
Source: planner/plans/pieces.py (the piece table).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import Holder
from heddle_operator.state.snapshot import Observed
from planner.model.shape import ModelShape
from planner.plans.pieces import region_piece
from planner.plans.ranks import Part, Seat
from planner.plans.regions import SHARES, Mask, Regions, regions_of, state_refinement
from planner.plans.state_rule import OWNED
from worker.contract import RankReport, Resume, resume_of

NO_COMMON_STEP = "there is no step that all survivors can reach"
NO_STATE = "no rank holds any state"
# Of a rank: its step, its gradients' step, and the step and the value of its norm.
Progress = tuple[int, int | None, int | None, float | None]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Survivors:
    """State that reachable ranks hold, pod by pod.

    Attributes:
        regions: of the model, cut as the plans of all of them cut it; None: they hold nothing.
        masks: by part of the model, which regions of each entry of the rule it has.
        ranks: by progress, one rank that has made it.
        parts: by pod, how many layouts its ranks hold of each part; None: of no part.
        progress: by pod, how many of its ranks have made the same progress.
    """

    regions: Regions | None
    masks: Mapping[Part, Mask]
    ranks: Mapping[Progress, RankReport]
    parts: Mapping[str, Counter[Part | None]]
    progress: Mapping[str, Counter[Progress]]

    @staticmethod
    def of(model: ModelShape, holders: Iterable[Holder], observed: Observed) -> Survivors:
        """State that some holders hold together.

        They may hold layouts of different epochs: at the step where they halted, both are the same
        numbers.
        """
        held: dict[int, EpochRecord] = {}
        found: dict[Part, Seat] = {}
        ranks: dict[Progress, RankReport] = {}
        parts: dict[str, Counter[Part | None]] = {}
        progress: dict[str, Counter[Progress]] = {}
        for holder in holders:
            rank = holder.rank
            made = (rank.step, rank.gradients_step, rank.norm_step, rank.gradient_norm)
            ranks.setdefault(made, rank)
            progress.setdefault(holder.pod, Counter())[made] += 1
            for epoch in (rank.epoch, rank.also_epoch):
                record = observed.record(epoch) if epoch is not None else None
                if record is None:
                    continue
                held[record.epoch] = record
                places = record.seal.by_place if record.seal else {}
                member = places.get((holder.pod, rank.slot))
                part = None
                if member is not None and member.rank is not None:
                    part = record.parts[member.rank]
                    found.setdefault(part, record.seats[member.rank])
                parts.setdefault(holder.pod, Counter())[part] += 1
        cuts = state_refinement(record.plan for record in held.values())
        regions = regions_of(model, cuts) if held else None
        masks = {p: OWNED.of_seat(regions, seat) for p, seat in found.items()} if regions else {}
        return Survivors(regions, masks, ranks, parts, progress)

    def lost_piece(self, without: Collection[str] = ()) -> str:
        """Which piece of the state none has, in words; "" if the state is whole.

        Args:
            without: pods that are left out.
        """
        if not _leave_last(self._all_parts, self.parts, without):
            return self._lost
        return self._lost_of(_left(self._all_parts, self.parts, without))

    def resume(self, without: Collection[str] = ()) -> Resume | None:
        """Where they can go on; None if they cannot agree.

        Args:
            without: pods that are left out.
        """
        return resume_of([self.ranks[p] for p in _left(self._all_progress, self.progress, without)])

    def problem(self, without: Collection[str] = ()) -> str:
        """Why they cannot go on, in words; "" if they can.

        Args:
            without: pods that are left out.
        """
        lost = self.lost_piece(without)
        return lost or ("" if self.resume(without) else NO_COMMON_STEP)

    @cached_property
    def _all_parts(self) -> Counter[Part | None]:
        return _sum(self.parts)

    @cached_property
    def _all_progress(self) -> Counter[Progress]:
        return _sum(self.progress)

    @cached_property
    def _lost(self) -> str:
        return self._lost_of(list(self._all_parts))

    def _lost_of(self, parts: Collection[Part | None]) -> str:
        """Sentence on the state that is lost where only these parts are held."""
        regions = self.regions
        if regions is None or not parts:
            return NO_STATE
        found = np.tile(regions.numel == 0, (len(OWNED.entries), 1))
        for part in parts:
            if part is not None:
                found |= self.masks[part]
        if found.all():
            return ""
        lost = int(np.argwhere(~found)[0, 1])
        missing = region_piece(regions, lost)
        experts = (
            f" of experts {missing.expert_start} to {missing.expert_stop}"
            if regions.share[lost] == SHARES.index("experts")
            else ""
        )
        return (
            f"the last owner of {missing.tensor} rows {missing.start} to {missing.stop}{experts} "
            "is gone"
        )


def _sum(by_pod: Mapping[str, Counter[T]]) -> Counter[T]:
    found: Counter[T] = Counter()
    for row in by_pod.values():
        found.update(row)
    return found


def _leave_last(
    all_: Counter[T], by_pod: Mapping[str, Counter[T]], without: Collection[str]
) -> set[T]:
    """Pieces that are lost without some pods."""
    gone: Counter[T] = Counter()
    for pod in without:
        gone.update(by_pod.get(pod, {}))
    return {key for key, count in gone.items() if count == all_[key]}


def _left(all_: Counter[T], by_pod: Mapping[str, Counter[T]], without: Collection[str]) -> list[T]:
    gone = _leave_last(all_, by_pod, without)
    return [key for key in all_ if key not in gone]
