"""What state survivors hold together, and which piece is lost.

Source: planner/plans/pieces.py (the piece table); design, section 4 "Recover".
"""

from __future__ import annotations

import numpy as np

from heddle_operator.state.situation import Holder
from heddle_operator.state.snapshot import EpochRecord, Observed
from planner.model.shape import ModelShape
from planner.plans.pieces import region_piece
from planner.plans.ranks import RankMap
from planner.plans.regions import SHARES, common_refinement, regions_of

NO_COMMON_STEP = "there is no step that all survivors can reach"


def lost_piece(model: ModelShape, holders: tuple[Holder, ...], observed: Observed) -> str:
    """Which piece of the state no holder has, in words; "" if the state is whole.

    Holders may hold layouts of different epochs: at the step where they halted, both are the same
    numbers.
    """
    held = [
        (record, holder)
        for holder in holders
        for epoch in (holder.rank.epoch, holder.rank.also_epoch)
        if epoch is not None and (record := observed.record(epoch)) is not None
    ]
    if not held:
        return "no rank holds any state"
    cuts = common_refinement(record.plan for record, _ in held)
    regions = regions_of(model, cuts)
    found = np.zeros(len(regions), dtype=bool)
    for record, holder in held:
        rank = _rank_in(record, holder)
        if rank is not None:
            found |= regions.of_seat(RankMap.of(record.plan).seats[rank])
    if found.all():
        return ""
    missing = region_piece(regions, int(np.flatnonzero(~found)[0]))
    experts = (
        f" of experts {missing.expert_start} to {missing.expert_stop}"
        if regions.share[~found][0] == SHARES.index("experts")
        else ""
    )
    return (
        f"the last holder of {missing.tensor} rows {missing.start} to {missing.stop}{experts} "
        "is gone, and there is no checkpoint"
    )


def _rank_in(record: EpochRecord, holder: Holder) -> int | None:
    members = record.seal.members if record.seal else ()
    mine = (holder.pod, holder.rank.slot)
    return next((m.rank for m in members if (m.pod, m.slot) == mine), None)
