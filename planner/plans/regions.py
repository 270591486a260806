"""The state of a model as regions: what all tensors of a layer that are cut alike have in common.

A layer has what TP leaves whole, what TP cuts into rows, its routed experts, which EP and ETP
tile, and what is counted instead of trained.  Cut at the common refinement of all plans in
question, each of the four is a few regions, and all pieces of a region have the same holders under
every plan.  So a model of 45,000 expert tensors is some thousand regions, and who holds them is a
matrix.
Source: Heddle, sections 3.2 (expert tiling) and 5.6 (DSM); the common refinement is Hetu's and
Megatron-Core's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, holds_tied, layer_tensors
from planner.plans.plan import Plan
from planner.plans.ranks import Part, Seat
from planner.plans.ranks import Share as Owner

Share = Literal["whole", "rows", "experts", "counted"]
SHARES: tuple[Share, ...] = ("whole", "rows", "experts", "counted")
Units = tuple[int, int, int, int]
WHOLE: Owner = (0, 1)  # the one share of what nobody shares
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Cuts(NamedTuple):
    """Where tensors are cut: the degrees of all plans in question."""

    tp: frozenset[int]  # of everything but routed experts
    ep: frozenset[int] = frozenset({1})  # over which whole experts are spread
    etp: frozenset[int] = frozenset({1})  # over which each expert is cut
    whole: frozenset[int] = frozenset({1})  # of what TP leaves whole: owners alone cut it


def common_refinement(plans: Iterable[Plan]) -> Cuts:
    """The cuts of several plans together, by what their ranks hold."""
    stages = [stage for plan in plans for template in plan.templates for stage in template.stages]
    return Cuts(
        frozenset(stage.tp for stage in stages),
        frozenset(stage.ep for stage in stages),
        frozenset(stage.expert_tp for stage in stages),
    )


def state_refinement(plans: Iterable[Plan]) -> Cuts:
    """The cuts of several plans together, by what their ranks hold and own: those of the state."""
    plans = tuple(plans)
    held = common_refinement(plans)
    tp, etp, whole = set(held.tp), set(held.etp), set(held.whole)
    for template in (template for plan in plans for template in plan.templates if template.zero):
        whole.add(template.replicas)
        for stage in template.stages:
            tp.add(stage.tp * template.replicas)
            etp.add(template.replicas * stage.tp // stage.ep)  # ETP x EDP
    return Cuts(frozenset(tp), held.ep, frozenset(etp), frozenset(whole))


def cut_points(size: int, degrees: frozenset[int]) -> tuple[int, ...]:
    """The common refinement of `size` rows cut evenly by each degree, from 0 to `size`."""
    return tuple(sorted({index * size // n for n in (*degrees, 1) for index in range(n + 1)}))


def shared_rows(part: Owner, owner: Owner, rows: int) -> tuple[int, int]:
    """A share of a part of some rows, as [start, stop): shares tile a part, wherever cuts fall."""
    (index, of), (turn, ways) = part, owner
    first = index * ways + turn
    return first * rows // (of * ways), (first + 1) * rows // (of * ways)


def units_of(cuts: Cuts) -> Units:
    """Of experts, of rows, of rows of experts, of rows of what is whole: `Regions.units`."""
    ep, tp, etp, whole = (
        math.lcm(*degrees) for degrees in (cuts.ep, cuts.tp, cuts.etp, cuts.whole)
    )
    return ep, tp, etp, whole


def share_of(tensor: Tensor) -> Share:
    """How plans cut a tensor."""
    if tensor.dim is None:
        return "counted" if tensor.is_counted else "whole"
    return "experts" if tensor.experts else "rows"


def is_uncut(regions: Regions) -> Mask:
    """Of which regions each rank of a TP group holds the whole [regions]."""
    return np.isin(regions.share, (SHARES.index("whole"), SHARES.index("counted")))


@cache
def share_numels(model: ModelShape, layer: int) -> tuple[int, int, int]:
    """Elements of a layer: what TP leaves whole, rows, experts."""
    found = dict.fromkeys(SHARES, 0)
    for tensor in layer_tensors(model, layer):
        found[share_of(tensor)] += tensor.numel
    return found["whole"] + found["counted"], found["rows"], found["experts"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Regions:
    """All regions of a model, layer by layer, by share (experts by expert, then row)."""

    model: ModelShape  # whose state it is
    cuts: Cuts  # of the refinement
    layer: Ints  # of each region [regions]
    share: Ints  # index of each region's share in `SHARES` [regions]
    # first expert of each and the one behind its last, in 1 / `units[0]` of all [regions, 2]
    experts: Ints
    # first row of each and the one behind its last, in 1 / `units[1]` of all (of TP), 1 /
    # `units[2]` (of ETP) or 1 / `units[3]` (of what is whole) [regions, 2]
    rows: Ints
    numel: Ints  # parameters of each [regions]
    # the least common multiples of the degrees of EP, TP and ETP, and of owners of what is whole
    units: Units
    # {(layer, share): index of its first region}; the others follow
    first: dict[tuple[int, Share], int]

    def __len__(self) -> int:
        return len(self.layer)

    def of_seat(self, seat: Seat) -> Mask:
        """Which regions a seat holds [regions]."""
        return self._within(seat, WHOLE, WHOLE)

    def owned(self, seat: Seat) -> Mask:
        """Which regions a seat owns [regions], of those that it holds; all that is counted."""
        return self._within(seat, seat.owner, seat.expert_owner)

    def _within(self, seat: Seat, owner: Owner, expert_owner: Owner) -> Mask:
        of_experts, of_tp, of_etp, of_whole = self.units
        (block, ep), share = seat.expert_block, self.share
        mine: Mask = (share == 0) & self._rows_in(WHOLE, owner, of_whole)
        mine |= (share == 1) & self._rows_in((seat.slot, seat.tp), owner, of_tp)
        mine |= share == SHARES.index("counted")
        mine |= (
            (share == 2)
            & (block * of_experts // ep <= self.experts[:, 0])
            & (self.experts[:, 1] <= (block + 1) * of_experts // ep)
            & self._rows_in(seat.expert_part, expert_owner, of_etp)
        )
        here = (seat.layers.start <= self.layer) & (self.layer < seat.layers.stop)
        if holds_tied(self.model, seat.layers):  # all rows of the embedding are the tied weight
            here |= (self.layer == 0) & (share == 1)
        return mine & here

    def _rows_in(self, part: Owner, owner: Owner, units: int) -> Mask:
        """Which regions have their rows in a share of a part of all [regions]."""
        first, last = shared_rows(part, owner, units)
        found: Mask = (first <= self.rows[:, 0]) & (self.rows[:, 1] <= last)
        return found

    def held(self, seats: Iterable[Seat]) -> Mask:
        """Which regions each seat holds [seats, regions]."""
        return self._by_part(seats, self.of_seat)

    def owned_by(self, seats: Iterable[Seat]) -> Mask:
        """Which regions each seat owns [seats, regions]."""
        return self._by_part(seats, self.owned)

    def _by_part(self, seats: Iterable[Seat], mask: Callable[[Seat], Mask]) -> Mask:
        known: dict[Part, Mask] = {}
        rows = []
        for seat in seats:
            part = seat.part
            if part not in known:
                known[part] = mask(seat)
            rows.append(known[part])
        return np.array(rows, dtype=bool).reshape(len(rows), len(self))


@cache
def regions_of(model: ModelShape, cuts: Cuts) -> Regions:
    """The regions of a model under some cuts."""
    units = units_of(cuts)
    experts, tp, etp, whole = (
        tuple(pairwise(cut_points(unit, degrees)))
        for unit, degrees in zip(units, (cuts.ep, cuts.tp, cuts.etp, cuts.whole), strict=True)
    )
    grids: dict[Share, list[_Box]] = {
        "whole": [(0, units[0], *row) for row in whole],
        "rows": [(0, units[0], *row) for row in tp],
        "experts": [(*block, *row) for block in experts for row in etp],
        "counted": [(0, units[0], 0, 1)],
    }
    found: list[tuple[int, ...]] = []
    first: dict[tuple[int, Share], int] = {}
    alike: dict[tuple[str, Share], list[int]] = {}  # sizes of the regions of all such layers
    for layer in range(model.layers + 2):
        for index, share in enumerate(SHARES):
            tensors = [one for one in layer_tensors(model, layer) if share_of(one) == share]
            if not tensors:
                continue
            kind = model.kind(layer), share
            if kind not in alike:
                alike[kind] = [
                    sum(_numel(tensor, box, units) for tensor in tensors) for box in grids[share]
                ]
            first[layer, share] = len(found)
            sizes = zip(grids[share], alike[kind], strict=True)
            found += [(layer, index, *box, numel) for box, numel in sizes]
    table = np.array(found, dtype=np.int64)
    return Regions(
        model=model,
        cuts=cuts,
        layer=table[:, 0],
        share=table[:, 1],
        experts=table[:, 2:4],
        rows=table[:, 4:6],
        numel=table[:, 6],
        units=units,
        first=first,
    )


_Box = tuple[int, int, int, int]  # experts [start, stop), rows [start, stop) of a region, in units


def _numel(tensor: Tensor, box: _Box, units: Units) -> int:
    """Elements of a tensor in a region, whole rows of whole experts, wherever the cuts fall."""
    share = share_of(tensor)
    if share == "counted":
        return tensor.numel
    of_experts, of_tp, of_etp, of_whole = units
    of_rows = {"whole": of_whole, "rows": of_tp, "experts": of_etp}[share]
    rows = box[3] * tensor.rows // of_rows - box[2] * tensor.rows // of_rows
    experts = max(1, tensor.experts)
    if share == "experts":
        experts = box[1] * experts // of_experts - box[0] * experts // of_experts
    return experts * rows * tensor.row_numel
