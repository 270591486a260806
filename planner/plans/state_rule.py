"""The rule of the state: its parts, their bytes, and which regions of each part a seat has.

Planner, migration, worker and checkpoints count by this one rule.  Parts with equal owners
stand in one entry and travel together.  State is what owners have: without ZeRO each holder owns
all that it holds.  With ZeRO 1 a holder has besides a weight that its owner's update writes.  It
follows from the owner's, so it is no state: it neither travels nor is saved, and a loss of the
owner cannot be made good by it, since the moments are gone.
Source: Heddle, section 5.6 (DSM); Rajbhandari et al., "ZeRO", whose optimizer has other holders
than the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.model.workload import Precision
from planner.plans.ranks import Seat
from planner.plans.regions import Mask, Regions

PartNames = tuple[str, ...]
# Of each tensor; they survive a change of plan.  Tensors of several parts stand in this order.
PARTS: PartNames = ("weight", "exp_avg", "exp_avg_sq")
_ELEMENT_BYTES = {"weight": 4, "exp_avg": 4, "exp_avg_sq": 4, "copy": 2}  # fp32; bf16 or fp16


def element_bytes(parts: PartNames) -> int:
    """Bytes of one element of some parts together."""
    return sum(_ELEMENT_BYTES[part] for part in parts)


def copies(precision: Precision) -> PartNames:
    """The low-precision copy of the weight that is multiplied; none in fp32.

    It follows from the master weight, so no copy travels and none is saved.
    """
    return () if precision == "fp32" else ("copy",)


@dataclass(frozen=True, slots=True)
class StateRule:
    """Who has which part of the state.

    Attributes:
        entries: (parts, which regions of them a seat has); each of `PARTS` is in one entry.
    """

    entries: tuple[tuple[PartNames, Callable[[Regions, Seat], Mask]], ...]

    def of_seat(self, regions: Regions, seat: Seat) -> Mask:
        """Which regions of each entry a seat has [entries, regions]."""
        return np.array([holds(regions, seat) for _, holds in self.entries], dtype=bool)

    def masks(self, regions: Regions, members: Sequence[Sequence[Seat]]) -> dict[PartNames, Mask]:
        """{parts: which regions of them each member has [members, regions]}.

        Args:
            regions: of the state, under the cuts of all plans in question.
            members: the seats whose state each member holds: none, one, or those of two plans.
        """
        found = np.zeros((len(self.entries), len(members), len(regions)), dtype=bool)
        for index, seats in enumerate(members):
            for seat in seats:
                found[:, index] |= self.of_seat(regions, seat)
        return {parts: mask for (parts, _), mask in zip(self.entries, found, strict=True)}


OWNED = StateRule(((PARTS, Regions.owned),))  # every owner of a piece has all parts of it
