"""How many bytes a change of plan must move to each GPU.

A GPU keeps what it holds, wherever its new rank is; what its new layout needs beyond that must come
from others.  Closed form of the piece table's answer (a law test compares them), because the search
asks often.  Without ZeRO every holder has all parts, and no fraction is lost: the degrees of a plan
divide the rows that they cut.  Cuts by owners need not, so plans with ZeRO 1 are counted region by
region.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import accumulate

import numpy as np

from planner.model.shape import ModelShape
from planner.model.tensors import holds_tied, tied_numel
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat
from planner.plans.regions import regions_of, share_numels, state_refinement
from planner.plans.state_rule import OWNED, PARTS, element_bytes

Slice = tuple[int, int]  # (index, of so many equal ones)


def shared_numel(model: ModelShape, one: Seat, other: Seat) -> int:
    """Parameters that both seats hold."""
    start = max(one.layers.start, other.layers.start)
    stop = max(start, min(one.layers.stop, other.layers.stop))
    tied = 0
    if holds_tied(model, one.layers) and holds_tied(model, other.layers):
        tied = tied_numel(model)
    if start == stop and not tied:
        return 0
    sums = _sums(model)
    whole, rows, experts = (b - a for a, b in zip(sums[start], sums[stop], strict=True))
    both, of = _overlap((one.slot, one.tp), (other.slot, other.tp))
    shared = whole + (rows + tied) * both // of
    if experts:
        blocks, of_blocks = _overlap(one.expert_block, other.expert_block)
        parts, of_parts = _overlap(one.expert_part, other.expert_part)
        shared += experts * blocks * parts // (of_blocks * of_parts)
    return shared


def held_numel(model: ModelShape, seat: Seat) -> int:
    """Parameters that a seat holds."""
    return shared_numel(model, seat, seat)


def missing_bytes(model: ModelShape, current: Plan, plan: Plan) -> dict[tuple[str, int], int]:
    """Bytes of the new layout that each GPU, as (node, index), did not hold before."""
    before = {(seat.node, seat.gpu): seat for seat in RankMap.of(current).seats}
    if current.zero or plan.zero:
        return _missing_by_region(model, current, plan, before)
    missing: dict[tuple[str, int], int] = {}
    state_bytes = element_bytes(PARTS)
    for seat in RankMap.of(plan).seats:
        gpu = (seat.node, seat.gpu)
        kept = shared_numel(model, seat, before[gpu]) if gpu in before else 0
        missing[gpu] = (held_numel(model, seat) - kept) * state_bytes
    return missing


def _missing_by_region(
    model: ModelShape, current: Plan, plan: Plan, before: Mapping[tuple[str, int], Seat]
) -> dict[tuple[str, int], int]:
    regions = regions_of(model, state_refinement([current, plan]))
    masks = OWNED.masks(regions, [[seat] for seat in before.values()])
    held = dict(zip(before, zip(*masks.values(), strict=True), strict=True))
    sizes = [regions.numel * element_bytes(parts) for parts in masks]
    missing: dict[tuple[str, int], int] = {}
    for seat in RankMap.of(plan).seats:
        gpu, needed = (seat.node, seat.gpu), OWNED.of_seat(regions, seat)
        lacks = needed & ~np.array(held[gpu]) if gpu in held else needed
        missing[gpu] = sum(int(size[mask].sum()) for size, mask in zip(sizes, lacks, strict=True))
    return missing


def bytes_to_move(model: ModelShape, current: Plan, plan: Plan) -> int:
    """Bytes that a change from one plan to the other must move in all."""
    return sum(missing_bytes(model, current, plan).values())


@cache
def _sums(model: ModelShape) -> tuple[tuple[int, ...], ...]:
    """Elements by share of all layers before each layer, without a tied weight."""
    layers = [share_numels(model, layer) for layer in range(model.layers + 2)]
    whole, rows, experts = layers[0]
    layers[0] = whole, rows - tied_numel(model), experts
    by_share = [accumulate(column, initial=0) for column in zip(*layers, strict=True)]
    return tuple(zip(*by_share, strict=True))


def _overlap(one: Slice, other: Slice) -> tuple[int, int]:
    """Overlap of two slices of the same rows: (so many, of so many)."""
    (i, n), (j, m) = one, other
    return max(0, min((i + 1) * m, (j + 1) * n) - max(i * m, j * n)), n * m
