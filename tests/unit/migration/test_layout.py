"""Who holds and who needs which piece: members are found by their GPU."""

from __future__ import annotations

import pytest

from migration.errors import LayoutMismatch
from migration.layout import describe, held_layout, needed_layout
from planner.model.catalogue import find_model
from planner.plans.pieces import Piece, holders
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.regions import Cuts
from tests.laws.migration.changes import Member

MODEL = find_model("tiny-llama")
TP1 = Plan(
    (FilledTemplate((Stage(gpu_type="a", tp=1, layers=6),), 1, (1,)),),
    (PlacedStage(0, 0, 0, "n0", (0,)),),
)
TP2 = Plan(
    (FilledTemplate((Stage(gpu_type="a", tp=2, layers=6),), 1, (1,)),),
    (PlacedStage(0, 0, 0, "n0", (1, 0)),),
)
CUTS = Cuts(frozenset({1, 2}))


def test_a_member_holds_the_pieces_of_the_seat_on_its_gpu():
    """TP2 puts slot 0 on GPU 1, so the member on GPU 1 holds the first rows."""
    members = (Member(0, 3, "n0", 0), Member(None, 3, "n0", 1))
    held = held_layout(MODEL, members, {3: TP2}, CUTS)
    assert Piece("1.q", 32, 64) in held[0]
    assert Piece("1.q", 0, 32) in held[1]
    assert not {Piece("1.q", 0, 32)} & set(held[0])


def test_a_member_that_voted_and_never_learnt_the_outcome_holds_both_layouts():
    """GPU 0 has the last rows under TP2 and the whole under TP1."""
    member = Member(0, 3, "n0", 0, also_holds=4)
    held = held_layout(MODEL, (member,), {3: TP2, 4: TP1}, CUTS)
    alone = held_layout(MODEL, (Member(0, 4, "n0", 0),), {4: TP1}, CUTS)
    assert set(held[0]) >= set(alone[0])
    assert len(set(held[0])) == len(held[0])


def test_a_member_that_holds_nothing_has_an_empty_row():
    held = held_layout(MODEL, (Member(0, None, "n0", 0), Member(1, 3, "n0", 1)), {3: TP2}, CUTS)
    assert held[0] == ()
    assert len(held) == 2


def test_members_of_different_epochs_hold_what_their_own_epoch_says():
    members = (Member(0, 3, "n0", 0), Member(1, 4, "n0", 1))
    held = held_layout(MODEL, members, {3: TP1, 4: TP2}, CUTS)
    assert set(held[1]) < set(held[0])


def test_the_new_layout_is_the_piece_table_of_the_new_plan():
    members = (Member(0, None, "n0", 1), Member(1, 3, "n0", 0), Member(None, 3, "n9", 0))
    needed = needed_layout(MODEL, TP2, members, CUTS)
    table = holders(MODEL, TP2)
    for rank in (0, 1):
        assert set(needed[rank]) == {p for p, owners in table.items() if rank in owners[0]}
    assert needed[2] == ()


@pytest.mark.parametrize(
    ("member", "sentence"),
    [
        (
            Member(0, 9, "n0", 0),
            "epoch 9, whose plan is not given; the plans given are of epochs 3",
        ),
        (Member(0, 3, "n7", 0), "no seat on GPU 0 of node 'n7'"),
        (Member(0, 3, "n0", 5), "no seat on GPU 5 of node 'n0'"),
    ],
    ids=["an epoch without a plan", "another node", "another GPU"],
)
def test_a_holder_that_its_plan_does_not_seat_is_refused(member, sentence):
    with pytest.raises(LayoutMismatch, match=sentence):
        held_layout(MODEL, (member,), {3: TP2}, CUTS)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ((Member(0, None, "n0", 1),), "ranks 0 to 1, the members have 0; each rank"),
        ((Member(0, None, "n0", 1), Member(0, None, "n0", 0)), "the members have 0, 0"),
        ((Member(0, None, "n0", 0), Member(1, None, "n0", 1)), "seats that rank on GPU 1 of 'n0'"),
    ],
    ids=["a rank without a member", "a rank with two members", "a rank on another GPU"],
)
def test_members_that_do_not_fill_the_new_plan_are_refused(members, sentence):
    with pytest.raises(LayoutMismatch, match=sentence):
        needed_layout(MODEL, TP2, members, CUTS)


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (Piece("3.q", 32, 64), "rows [32, 64) of tensor q in layer 3"),
        (Piece("0.weight", 0, 128), "rows [0, 128) of tensor weight in the embedding"),
        (Piece("2.up", 0, 8, 4, 6), "rows [0, 8) of tensor up, experts [4, 6), in layer 2"),
    ],
)
def test_a_piece_is_described_in_words(piece, words):
    assert describe(piece) == words
