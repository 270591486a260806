"""The piece table: tiles every tensor, counts holders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.model.tensors import model_tensors
from planner.plans.pieces import (
    Piece,
    held_pieces,
    holders,
    holders_min,
    node_counts,
    tensor_pieces,
)
from planner.plans.plan import PlacedStage, Plan
from planner.plans.ranks import RankMap
from planner.plans.regions import Cuts
from tests.builders import (
    MODEL,
    MOE,
    compositions,
    on_one_node,
    piece_numels,
    plans_on,
    template,
    tiled,
)

DEGREES = st.frozensets(st.sampled_from([1, 2, 4]), min_size=1)


@given(DEGREES)
def test_pieces_tile_every_tensor_whatever_the_cuts(degrees):
    cuts = Cuts(degrees)
    numels = piece_numels(MODEL, cuts)
    for tensor in model_tensors(MODEL):
        pieces = tensor_pieces(tensor, cuts)
        assert sum(numels[piece] for piece in pieces) == tensor.numel
        for tp in degrees:
            seats = RankMap.of(on_one_node(template(f"{tp}x6"))).seats
            held = [p for seat in seats for p in held_pieces(tensor, seat, cuts)]
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
    assert set(node_counts(MODEL, plan).values()) == {1, 2}


def test_two_replicas_that_share_their_experts_hold_half_of_them_each():
    """EP 2 over two replicas of TP 1: each box of experts has one holder, all else has two."""
    table = holders(MOE, tiled("1x3", ep=2, replicas=2))
    assert table[Piece("3.experts_up", 0, 8, 0, 2)] == ((0,),)
    assert table[Piece("3.experts_up", 0, 8, 2, 4)] == ((1,),)
    assert table[Piece("3.q", 0, 8)] == ((0,), (1,))


def test_every_holder_of_tiled_experts_contributes_and_copies_do_not():
    """Four devices of two replicas, EP 2 x ETP 1: two copies of each expert, all with gradients."""
    table = holders(MOE, tiled("2x3", ep=2, etp=1, replicas=2))
    assert table[Piece("3.experts_up", 0, 8, 0, 2)] == ((0,), (2,))
    assert table[Piece("3.router", 0, 4)] == ((0, 1), (2, 3))


def test_on_two_nodes_experts_that_are_shared_live_on_one():
    both = tiled("1x3", ep=2, replicas=2, nodes="ab")
    assert holders_min(MOE, both) == 1
    assert holders_min(MOE, tiled("1x3", replicas=2, nodes="ab")) == 2
