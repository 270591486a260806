"""Classes of the state to move: regions that the same members hold and the same members lack.

Some thousand regions are some dozens of classes, whatever the number of tensors and members, and
all that is decided about a change is decided for a class as a whole.
Source: Heddle, section 5.6 (migration tuples); only missing bytes move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from migration.errors import StateLost
from migration.layout import StateLayout, describe
from planner.plans.pieces import region_piece
from planner.plans.regions import Ints, Mask
from planner.plans.state_rule import PartNames, element_bytes


@dataclass(frozen=True, slots=True)
class MovingClass:
    """Regions with equal holders and equal receivers.

    Attributes:
        parts: of the state that move.
        regions: their indices, ascending.
        holders: transport ranks that hold them, ascending.
        receivers: transport ranks that need and do not hold them, ascending.
        num_bytes: of all parts of all its regions.
    """

    parts: PartNames
    regions: tuple[int, ...]
    holders: tuple[int, ...]
    receivers: tuple[int, ...]
    num_bytes: int


def moving_classes(held: StateLayout, needed: StateLayout) -> tuple[MovingClass, ...]:
    """The classes of a change, by their first region.

    Args:
        held: before it.
        needed: after it, of the same regions.

    Raises:
        StateLost: a needed region has no holder; the message names a piece of it.
    """
    found: list[MovingClass] = []
    for parts, have in held.masks.items():
        missing = needed.masks[parts] & ~have & (held.regions.numel > 0)
        moving = missing.any(axis=0)
        lost = moving & ~have.any(axis=0)
        if lost.any():
            piece = region_piece(held.regions, int(np.flatnonzero(lost)[0]))
            raise StateLost(
                f"no live rank holds {describe(piece)}; the job can go on only from a checkpoint, "
                "and more holders of each piece keep more copies",
                field="min_holders",
                code="NoHolder",
            )
        sizes = held.regions.numel * element_bytes(parts)
        found += _grouped(parts, np.flatnonzero(moving), have, missing, sizes)
    return tuple(found)


def bytes_missing(held: StateLayout, needed: StateLayout) -> tuple[int, ...]:
    """Per transport rank, the bytes of its new layout that it does not hold."""
    total = np.zeros(len(held), dtype=np.int64)
    for parts, have in held.masks.items():
        lacks = (needed.masks[parts] & ~have).astype(np.int64)
        total += lacks @ (held.regions.numel * element_bytes(parts))
    return tuple(total.tolist())


def _grouped(
    parts: PartNames, moving: Ints, have: Mask, missing: Mask, sizes: Ints
) -> list[MovingClass]:
    columns = np.packbits(np.concatenate([have[:, moving], missing[:, moving]]), axis=0).T
    alike: dict[bytes, list[int]] = {}
    for region, column in zip(moving.tolist(), np.ascontiguousarray(columns), strict=True):
        alike.setdefault(column.tobytes(), []).append(region)
    return [
        MovingClass(
            parts,
            tuple(regions),
            tuple(np.flatnonzero(have[:, regions[0]]).tolist()),
            tuple(np.flatnonzero(missing[:, regions[0]]).tolist()),
            int(sizes[regions].sum()),
        )
        for regions in alike.values()
    ]
