"""The line of a class: cut anywhere, its slices tile it row by row."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from migration.classes import MovingClass
from migration.slices import Slice, line_of
from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece
from planner.plans.regions import Cuts, regions_of
from planner.plans.state_rule import PARTS
from tests.builders import MOE

REGIONS = regions_of(MOE, Cuts(frozenset({2}), frozenset({2}), frozenset({2})))
LINE = line_of(REGIONS, MovingClass(PARTS, tuple(range(len(REGIONS))), (0,), (1,), 0))
TENSORS = {tensor.name: tensor for tensor in model_tensors(MOE)}
END = LINE.ends[-1]


def rows_of(box):
    return [
        (box.tensor, expert, row)
        for expert in range(box.expert_start, box.expert_stop)
        for row in range(box.start, box.stop)
    ]


def test_the_line_of_all_regions_is_the_whole_state():
    assert 12 * sum(tensor.numel for tensor in TENSORS.values()) == END


@given(st.lists(st.integers(0, END), max_size=12))
def test_slices_tile_the_line_wherever_it_is_cut(cuts):
    bounds = [0, *sorted(cuts), END]
    found = []
    for start, stop in pairwise(bounds):
        size = 0
        for part, num_bytes in LINE.slices(start, stop):
            rows = rows_of(part.box)
            assert num_bytes == 12 * TENSORS[part.piece.tensor].row_numel * len(rows)
            found += rows
            size += num_bytes
        assert abs(size - (stop - start)) <= max(LINE.row_bytes)
    assert len(found) == len(set(found))
    assert len(found) == sum(len(rows_of(piece)) for piece in LINE.pieces)


def test_a_slice_of_experts_is_rows_of_one_or_all_rows_of_several():
    for part, _ in LINE.slices(END // 3, END):
        piece = part.piece
        several = piece.expert_stop - piece.expert_start > 1
        assert not several or (part.start, part.stop) == (piece.start, piece.stop)


def test_a_slice_is_a_box():
    part = Slice(Piece("1.q", 0, 8, 0, 1), 2, 5)
    assert part.box == Piece("1.q", 2, 5, 0, 1)
