"""worker/rank/move.py: every rank works the same change out of the same directive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.migration.loads import makespan_s
from migration.errors import LayoutMismatch, StateLost
from migration.links import usual_links
from planner.plans.ranks import RankMap
from planner.plans.regions import common_refinement
from tests.builders import seat_pieces
from tests.unit.worker.changes import MODEL, change, plan
from worker.contract import Resume
from worker.rank.move import links_of, plan_move

SHAPES = ("1x2", "2x2", "4x2", "1x1+1x1", "2x1+1x1", "1x1+2x1")
pipelines = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2)


def moves_of(directive):
    return [plan_move(MODEL, directive, m.pod, m.slot, "gloo") for m in directive.members]


def test_a_rank_that_is_no_member_has_no_move():
    directive = change(None, plan("1x2"))
    assert plan_move(MODEL, directive, "tiny-a-0", 1, "gloo") is None
    assert plan_move(MODEL, directive, "tiny-b-0", 0, "gloo") is None


def test_at_the_start_nothing_moves_and_nobody_waits_for_a_boundary():
    for move in moves_of(change(None, plan("2x2"))):
        assert not move.moves_state
        assert not move.waits_for_boundary
        assert (move.transfer.runs, move.bytes_needed) == ((), 0)


def test_only_a_change_beside_a_training_world_waits_for_its_boundary():
    old, new = plan("1x2"), plan("1x1+1x1")
    assert all(move.waits_for_boundary for move in moves_of(change(old, new)))
    after_a_loss = moves_of(change(old, new, resume=Resume(step=7)))
    assert all(move.moves_state for move in after_a_loss)
    assert not any(move.waits_for_boundary for move in after_a_loss)


def test_a_rank_that_leaves_has_no_seat_and_needs_nothing():
    stays, leaves = moves_of(change(plan("2x2"), plan("1x2")))
    assert (stays.seat.rank, stays.transport_rank) == (0, 0)
    assert leaves.seat is None
    assert (leaves.pieces_after(), leaves.bytes_needed, leaves.transport_rank) == ((), 0, 1)


def test_what_the_switch_needs_is_worked_out_before_it():
    for move in moves_of(change(plan("2x2"), plan("1x2"))):
        assert set(move.transfer._messages) == {move.transport_rank}
        assert "digest" in vars(move.transfer)
        held, needed = (set(of[move.transport_rank]) for of in (move.held, move.needed))
        assert {kept.box for kept in move.kept} == held & needed


def test_pieces_that_no_member_holds_are_lost():
    directive = change(plan("1x1+1x1"), plan("1x2"))
    alone = directive.model_copy(update={"members": directive.members[:1]})
    with pytest.raises(StateLost):
        plan_move(MODEL, alone, "tiny-a-0", 0, "gloo")


def test_members_that_do_not_fit_the_plan_are_refused():
    directive = change(None, plan("2x2"))
    short = directive.model_copy(update={"members": directive.members[:1]})
    with pytest.raises(LayoutMismatch, match="ranks 0 to 1"):
        plan_move(MODEL, short, "tiny-a-0", 0, "gloo")


@settings(max_examples=15)
@given(pipelines, pipelines, st.integers(0, 2))
def test_senders_receivers_and_sizes_agree_without_a_word(before, after, first_gpu):
    old, new = plan(*before), plan(*after, first_gpu=first_gpu)
    moves = moves_of(change(old, new))
    assert len({move.transfer.digest for move in moves}) == 1
    assert {move.cuts for move in moves} == {common_refinement([old, new])}
    received = [0] * len(moves)
    for move in moves:
        for message in move.transfer.messages(move.transport_rank):
            if message.receiver == move.transport_rank:
                received[message.receiver] += message.num_bytes
    assert [move.bytes_needed for move in moves] == received
    for move, seat in zip(moves, RankMap.of(new).seats, strict=False):
        assert move.seat == seat
        assert move.pieces_after() == seat_pieces(MODEL, seat, move.cuts)


def over(directive, wire):
    """Moves of all ranks over a wire, and the hosts between which they travel."""
    moves = [plan_move(MODEL, directive, m.pod, m.slot, wire) for m in directive.members]
    assert len({move.transfer.digest for move in moves}) == 1
    return moves[0].transfer


def test_a_move_is_planned_by_the_links_of_the_wire_that_carries_it():
    """Else senders are chosen by rates that the planner does not price."""
    directive = change(plan("1x2", gpu_type="h100"), plan("1x1+1x1", gpu_type="h100"))
    transfers = {wire: over(directive, wire) for wire in ("gloo", "staged", "nccl")}
    assert transfers["gloo"].links == usual_links(1)
    for wire in ("staged", "nccl"):
        assert transfers[wire].links == links_of(MODEL, directive, wire, ["a", "a"])
    staged, direct = makespan_s(transfers["staged"]), makespan_s(transfers["nccl"])
    assert staged > 10 * direct, "two copies and gloo, or NVLink"


def test_two_pods_on_one_node_are_two_hosts_over_nccl_and_one_over_the_host():
    old, new = plan("1x2", gpu_type="h100"), plan("1x1+1x1", gpu_type="h100")
    found = change(old, new)
    first, second = found.members
    pods = (first, second.model_copy(update={"pod": "tiny-a-1"}))
    directive = found.model_copy(update={"members": pods})
    assert over(directive, "nccl").nodes == (0, 1)
    assert over(directive, "staged").nodes == (0, 0)
    card, shared = over(found, "nccl").links, over(directive, "nccl").links
    assert sum(shared.nic_bytes_per_s) == sum(card.nic_bytes_per_s), "they share one card"
    assert makespan_s(over(directive, "nccl")) > makespan_s(over(found, "nccl"))
