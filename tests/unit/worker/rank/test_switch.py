"""rank/switch.py: all ranks flip or none does; until then nothing of the old epoch changes."""

from __future__ import annotations

import operator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import TCPStore

from migration.errors import TransferFailed
from planner.plans.pieces import shard
from tests.unit.worker.changes import (
    MODEL,
    change,
    plan,
    whole_state,
)
from tests.unit.worker.switches import (
    AT_7,
    NEW,
    OLD,
    PARTS,
    Killed,
    bytes_to_copy,
    die_in,
    kept_bytes,
    members_of,
    pipelines,
    run,
    verify,
)
from worker.contract import Resume
from worker.engine.seam import Progress
from worker.rank.switch import Undecided
from worker.rank.vote import Vote
from worker.state.held_state import find_tensor


def test_on_commit_every_rank_holds_its_new_layout_bit_for_bit():
    members = members_of(change(OLD, NEW))
    assert all(member.missing() for member in members[1:])
    assert run(members) == ["commit"] * 3
    assert [member.missing() for member in members] == [[], [], []]
    assert len({member.switch.digest for member in members}) == 1
    assert members[0].switch.digest is not None


def test_owners_give_their_weights_only_after_the_vote():
    """Before it, low-precision weights may be those that the old plan trains with."""
    members, spread = members_of(change(OLD, NEW.with_zero(1))), []
    for member in members:
        engine = SimpleNamespace(spread=lambda: spread.append(True) or 4)
        prepared = member.switch.prepared
        successor = prepared.successor._replace(engine=engine)
        member.switch.prepared = replace(prepared, successor=successor)
    assert run(members) == ["commit"] * 3
    assert spread == []
    assert len(set(verify(members))) == 1
    assert (len(spread), {member.switch.bytes_spread for member in members}) == (3, {4})


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(pipelines, pipelines, st.integers(0, 2))
def test_whatever_the_plans_the_state_arrives_and_the_old_one_stays(before, after, first_gpu):
    old, new = plan(*before), plan(*after, first_gpu=first_gpu)
    members = members_of(change(old, new), old)
    assert set(run(members)) == {"commit"}
    for member in members:
        assert member.is_untouched()
        assert kept_bytes(member.switch.prepared, member.held) == bytes_to_copy(member, old)
        if member.move.seat is None:
            continue
        assert member.missing() == []
        seat = member.old_seat(old)
        same = {
            name
            for name in member.target.shards
            if name in member.shards
            and shard(find_tensor(MODEL, name), seat)
            == shard(find_tensor(MODEL, name), member.move.seat)
        }
        assert member.target.adopted == same
        for name in same:
            assert all(map(operator.is_, member.target.shards[name], member.shards[name]))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(pipelines, pipelines, st.integers(0, 7), st.sampled_from(PARTS[:3]))
def test_whoever_fails_in_whatever_part_nobody_commits_and_nothing_changes(
    before, after, who, part
):
    old, new = plan(*before), plan(*after)
    directive = change(old, new)
    failing = who % len(directive.members)
    members = members_of(directive, old, on_phase={failing: die_in(part)})
    outcomes = run(members)
    assert isinstance(outcomes[failing], Killed)
    assert "commit" not in outcomes
    assert all(member.is_untouched() for member in members)
    assert Vote(members[0].switch.prepared.store, 2, len(members)).outcome() == "abort"


def test_the_parts_of_a_switch_end_one_after_the_other():
    members = members_of(change(OLD, NEW))
    run(members)
    for member in members:
        assert tuple(member.switch.laps) == PARTS
        assert sorted(member.switch.laps.values()) == list(member.switch.laps.values())
        assert tuple(member.switch.services.phases) == PARTS
        assert member.switch.services.activity.part == "vote"
        assert not member.switch.services.activity.waiting


def test_who_waits_for_the_others_votes_says_so():
    said = []
    members = members_of(change(OLD, NEW), on_phase={1: die_in("vote"), 2: die_in("vote")})

    def told():
        said.append(members[0].switch.services.activity.waiting)
        return True

    assert run(members, told)[0] == "abort"
    assert said[0] is True


def test_the_move_is_over_when_the_vote_begins_and_only_then():
    members = members_of(change(OLD, NEW))
    phases = []
    run(members, before_vote=lambda: phases.append([m.switch.services.phases for m in members]))
    assert len(phases) == 3
    members, over = members_of(change(OLD, NEW), on_phase={0: die_in("verify")}), []
    run(members, before_vote=lambda: over.append("a rank came to its vote"))
    assert over == []


def test_at_the_start_of_a_job_there_is_only_a_vote():
    members = members_of(change(None, NEW))
    assert run(members) == ["commit"] * 3
    assert {member.switch.digest for member in members} == {None}
    assert {member.transport.bytes_sent for member in members} == {0}
    assert {member.switch.agreed.step for member in members} == {0}


def test_a_start_goes_on_where_the_sources_of_all_ranks_stand():
    members = members_of(change(None, NEW), starts=dict.fromkeys(range(3), AT_7))
    assert run(members) == ["commit"] * len(members)
    assert [member.switch.agreed for member in members] == [AT_7] * len(members)


def test_ranks_whose_sources_stand_at_different_steps_do_not_start():
    members = members_of(change(None, NEW), starts={0: AT_7, 1: Progress(step=8, updates=6)})
    assert all(isinstance(error, TransferFailed) for error in run(members))


def test_who_joins_learns_how_far_the_state_is():
    members = members_of(change(OLD, NEW))
    assert [member.switch.progress for member in members] == [AT_7, None, None]
    run(members)
    assert [member.switch.agreed for member in members] == [AT_7] * 3


def test_ranks_at_different_steps_move_nothing_and_commit_nothing():
    old = plan("1x2", "1x2")
    directive = change(old, plan("1x2", "1x2", "1x2"))
    members = members_of(directive, old, progress={1: Progress(step=8, updates=6)})
    assert all("stand at steps 7 to 8" in str(error) for error in run(members))
    assert Vote(members[0].switch.prepared.store, 2, 3).outcome() == "abort"
    assert {member.transport.bytes_sent for member in members} == {0}


def test_ranks_that_have_applied_different_updates_commit_nothing():
    old = plan("1x2", "1x2")
    directive = change(old, plan("1x2", "1x2", "1x2"))
    members = members_of(directive, old, progress={1: Progress(step=7, updates=6)})
    assert all(isinstance(error, TransferFailed) for error in run(members))


@pytest.mark.parametrize(("step", "goes"), [(7, True), (6, False), (8, False)])
def test_a_recovery_resumes_at_the_step_of_the_state_or_not_at_all(step, goes):
    outcomes = run(members_of(change(OLD, NEW, resume=Resume(step=step))))
    if goes:
        assert outcomes == ["commit"] * 3
    else:
        sentence = f"the recovery asks for step {step}, the state is at 7"
        assert [str(outcome) for outcome in outcomes] == [sentence] * 3


def test_an_abort_leaves_the_old_epoch_as_it_was():
    """Rank 2 never comes to vote; the others have received, and are told to abort."""
    members = members_of(change(OLD, NEW), on_phase={2: die_in("vote")})
    first, second, third = run(members, told=lambda: True)
    assert (first, second, type(third)) == ("abort", "abort", Killed)
    assert members[0].is_untouched()


def test_a_message_that_is_damaged_ends_the_change_for_all():
    members = members_of(change(OLD, NEW))
    post_send = members[0].transport.post_send

    def damage(peer, tensor):
        tensor = tensor.clone()
        tensor.view(-1).view(torch.uint8)[-1] ^= 1
        return post_send(peer, tensor)

    members[0].transport.post_send = damage
    outcomes = run(members)
    assert "commit" not in outcomes
    assert any("damaged" in str(outcome) for outcome in outcomes)
    assert members[0].is_untouched()


def test_copies_of_a_piece_that_differ_are_noticed_before_the_vote():
    old, new = plan("1x2", "1x2"), plan("1x2", "1x2", "1x2")
    state = whole_state()
    state["2.q"][1][3, 3] += 1e-6  # one moment of the second replica
    outcomes = run(members_of(change(old, new), old, state={1: state}))
    assert all(isinstance(outcome, TransferFailed) for outcome in outcomes)
    assert "tensor q in layer 2" in str(outcomes[0])


def test_a_bit_that_flips_once_the_message_has_arrived_is_noticed_before_the_vote():
    """Its checksum was right; only the copies of the other holders can tell."""

    def flip(name):
        if name == "verify":
            members[2].target.shards["2.q"][2].view(-1)[0] += 1e-6

    members = members_of(change(OLD, NEW), on_phase={2: flip})
    outcomes = run(members)
    assert all("do not hold the same bytes" in str(outcome) for outcome in outcomes)
    assert members[0].is_untouched()


def test_a_store_that_dies_after_the_vote_leaves_both_layouts():
    """A real store: rank 0 votes and waits; the store goes before the others have voted."""
    server = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    stores = [
        TCPStore("127.0.0.1", server[0].port, is_master=False, wait_for_workers=False)
        for _ in range(3)
    ]

    def told():
        server.clear()  # rank 0 has voted, and asks while it waits
        return False

    dying = {1: die_in("vote"), 2: die_in("vote")}
    members = members_of(change(OLD, NEW), on_phase=dying, stores=stores)
    (outcome, *_) = run(members, told)
    assert isinstance(outcome, Undecided)
    assert members[0].missing() == []
    assert members[0].is_untouched()


def test_the_state_after_the_change_has_the_digest_from_before():
    members = members_of(change(OLD, NEW))
    run(members)
    assert verify(members) == [member.switch.digest for member in members]


def test_a_state_that_changed_on_its_way_into_the_engine_is_refused():
    members = members_of(change(OLD, NEW))
    run(members)
    members[2].target.shards["2.q"][1].view(-1)[0] += 1.0
    errors = verify(members)
    assert all(isinstance(e, TransferFailed) and "after the change" in str(e) for e in errors), (
        errors
    )


def test_where_only_what_moved_is_verified_there_is_no_digest():
    members = members_of(change(OLD, NEW), verify="Moved")
    assert run(members) == ["commit"] * 3
    assert [member.missing() for member in members] == [[], [], []]
    assert {member.switch.digest for member in members} == {None}
    assert verify(members) == [None] * 3
