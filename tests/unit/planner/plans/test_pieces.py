"""The piece table: tiles every tensor, counts holders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.model.tensors import model_tensors
from planner.plans.pieces import (
    common_refinement,
    cut_points,
    held_pieces,
    holders,
    holders_min,
    nodes_of_pieces,
    piece_numels,
    tensor_pieces,
)
from planner.plans.plan import PlacedStage, Plan
from planner.plans.ranks import RankMap
from tests.builders import MODEL, compositions, on_one_node, plans_on, template

DEGREES = st.frozensets(st.sampled_from([1, 2, 4]), min_size=1)


def test_cuts_are_the_common_refinement():
    assert cut_points(8, frozenset({2, 4})) == (0, 2, 4, 6, 8)
    assert cut_points(8, frozenset({1})) == (0, 8)


@given(DEGREES)
def test_pieces_tile_every_tensor_whatever_the_cuts(degrees):
    numels = piece_numels(MODEL, degrees)
    for tensor in model_tensors(MODEL):
        pieces = tensor_pieces(tensor, degrees)
        assert sum(numels[piece] for piece in pieces) == tensor.numel
        for tp in degrees:
            held = [p for slot in range(tp) for p in held_pieces(tensor, tp, slot, degrees)]
            assert held == list(pieces) * (tp if tensor.dim is None else 1)


@given(compositions().flatmap(plans_on))
def test_each_pipeline_holds_each_piece_and_only_norms_twice(plan):
    pipelines = len(RankMap.of(plan).pipelines)
    for piece, owners in holders(MODEL, plan).items():
        assert len(owners) == pipelines
        assert "norm" in piece.tensor or all(len(ranks) == 1 for ranks in owners)


def test_holders_are_counted_by_node():
    row = template("1x3 1x3", 1, (1, 1))
    where = (
        PlacedStage(0, 0, 0, "a", (0,)),
        PlacedStage(0, 0, 1, "a", (1,)),
        PlacedStage(0, 1, 0, "b", (0,)),
        PlacedStage(0, 1, 1, "a", (2,)),
    )
    plan = Plan((row,), where)
    assert holders_min(MODEL, plan) == 1
    counts = {len(names) for names in nodes_of_pieces(MODEL, plan).values()}
    assert counts == {1, 2}


def test_several_plans_share_their_cuts():
    plans = (on_one_node(template("2x6")), on_one_node(template("1x3 1x3")))
    assert common_refinement(plans) == {1, 2}
