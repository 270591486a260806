"""rank/switch.py: all ranks flip or none does; until then nothing of the old epoch changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.distributed import HashStore, TCPStore

from migration.errors import TransferFailed
from planner.plans.ranks import RankMap
from tests.fakes.transport import Board
from tests.unit.worker.changes import (
    MODEL,
    change,
    cut,
    held_by,
    plan,
    pod_of,
    shards_of,
    whole_state,
)
from worker.rank.held_state import HeldState
from worker.rank.move import plan_move
from worker.rank.switch import Switch, Undecided
from worker.rank.vote import Vote

OLD, NEW = plan("1x2"), plan("2x1+1x1")


class Killed(Exception):
    """What a rank that dies raises here."""


def die_before_the_vote(name):
    if name == "vote":
        raise Killed


class Watched:
    """What a switch asks of `Services`: a limit for the vote, and to be told of its phases."""

    def __init__(self, on_phase=lambda name: None, timeout_s=10.0):
        self.timeout_s = timeout_s
        self.phases = []
        self._on_phase = on_phase

    def on_phase(self, name):
        self.phases.append(name)
        self._on_phase(name)


def switches(directive, services=None, stores=None, steps=None):
    """(switch, what it holds) of every member, over transports in memory."""
    transports = Board(len(directive.members)).transports()
    shared = HashStore()
    found = []
    for i, (member, transport) in enumerate(zip(directive.members, transports, strict=True)):
        move = plan_move(MODEL, directive, pod_of(member.node), member.slot)
        switch = Switch(
            MODEL,
            move,
            stores[i] if stores else shared,
            transport,
            services[i] if services else Watched(),
            steps[i] if steps else 7,
        )
        found.append((switch, held_by(OLD, member.node, member.gpu)))
    return found


def run(pairs, told=lambda: False):
    """Outcome, or error, of every rank."""

    def act(pair):
        try:
            return pair[0].run(pair[1], told)
        except (TransferFailed, Undecided, Killed) as error:
            return error

    with ThreadPoolExecutor(len(pairs)) as pool:
        return list(pool.map(act, pairs))


def missing(switch, held):
    """Pieces of the new layout that are not, bit for bit, in what the rank holds."""
    state, found = whole_state(), []
    for piece in switch.move.pieces_after():
        try:
            parts = held.read(piece)
        except KeyError:
            found.append(piece)
        else:
            assert all(map(torch.equal, parts, cut(piece, state))), piece
    return found


def test_on_commit_every_rank_holds_its_new_layout_bit_for_bit():
    pairs = switches(change(OLD, NEW))
    assert [len(missing(*pair)) > 0 for pair in pairs] == [False, True, True]
    assert run(pairs) == ["commit"] * 3
    assert [missing(*pair) for pair in pairs] == [[], [], []]
    assert len({switch.digest for switch, _ in pairs}) == 1
    assert pairs[0][0].digest is not None


def test_the_parts_of_a_switch_end_one_after_the_other():
    services = [Watched() for _ in range(3)]
    pairs = switches(change(OLD, NEW), services)
    run(pairs)
    for switch, _ in pairs:
        assert list(switch.laps) == ["drain", "transfer", "verify", "vote"]
        assert sorted(switch.laps.values()) == list(switch.laps.values())
    assert all(s.phases == ["drain", "transfer", "verify", "vote"] for s in services)


def test_at_the_start_of_a_job_there_is_only_a_vote():
    pairs = switches(change(None, NEW))
    assert run(pairs) == ["commit"] * 3
    assert {switch.digest for switch, _ in pairs} == {None}
    assert {switch.transport.bytes_sent for switch, _ in pairs} == {0}


def test_ranks_at_different_steps_move_nothing_and_commit_nothing():
    directive = change(OLD, NEW)
    store = HashStore()
    pairs = switches(directive, steps=[7, 8, 7], stores=[store] * 3)
    assert all("stand at steps 7 to 8" in str(error) for error in run(pairs))
    assert Vote(store, directive.epoch, 3).outcome() == "abort"
    assert {switch.transport.bytes_sent for switch, _ in pairs} == {0}


def test_an_abort_leaves_the_old_epoch_as_it_was():
    """Rank 2 never comes to vote; the others have received, and are told to abort."""
    pairs = switches(change(OLD, NEW), [Watched(), Watched(), Watched(die_before_the_vote)])
    first, second, third = run(pairs, told=lambda: True)
    assert (first, second, type(third)) == ("abort", "abort", Killed)
    assert missing(*pairs[1])
    assert not missing(*pairs[0])


def test_who_waits_too_long_for_the_others_votes_aborts():
    impatient = [Watched(timeout_s=0.05), Watched(timeout_s=0.05), Watched(die_before_the_vote)]
    assert run(switches(change(OLD, NEW), impatient))[:2] == ["abort", "abort"]


def test_a_message_that_is_damaged_ends_the_change_for_all():
    pairs = switches(change(OLD, NEW))
    exchange = pairs[0][0].transport.exchange

    def damage(sends, receives):
        for _, body in sends:
            body[-1] ^= 1
        exchange(sends, receives)

    pairs[0][0].transport.exchange = damage
    outcomes = run(pairs)
    assert "commit" not in outcomes
    assert any("damaged" in str(outcome) for outcome in outcomes)
    assert missing(*pairs[1])


def test_copies_of_a_piece_that_differ_are_noticed_before_the_vote():
    old, new = plan("1x2", "1x2"), plan("1x2", "1x2", "1x2")
    directive = change(old, new)
    pairs = switches(directive)
    held = HeldState(MODEL)
    state = whole_state()
    state["2.q"][1][3, 3] += 1e-6  # one moment of the second replica
    held.add_shards(RankMap.of(old).seats[1], shards_of(RankMap.of(old).seats[1], state))
    first = held_by(old, "a", 0)
    outcomes = run([(pairs[0][0], first), (pairs[1][0], held), pairs[2]])
    assert all(isinstance(outcome, TransferFailed) for outcome in outcomes)
    assert "tensor q in layer 2" in str(outcomes[0])


def test_a_bit_that_flips_once_the_message_has_arrived_is_noticed_before_the_vote():
    """Its checksum was right; only the copies of the other holders can tell."""

    def flip(name):
        if name == "verify":
            next(iter(receiver.received.values()))[2].view(-1)[0] += 1e-6

    pairs = switches(change(OLD, NEW), [Watched(), Watched(), Watched(flip)])
    receiver = pairs[2][0]
    outcomes = run(pairs)
    assert all("do not hold the same bytes" in str(outcome) for outcome in outcomes)
    assert missing(*pairs[1])


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

    services = [Watched(), Watched(die_before_the_vote), Watched(die_before_the_vote)]
    pairs = switches(change(OLD, NEW), services, stores)
    (outcome, *_) = run(pairs, told)
    assert isinstance(outcome, Undecided)
    assert not missing(*pairs[0])


def test_the_state_after_the_change_has_the_digest_from_before():
    pairs = switches(change(OLD, NEW))
    run(pairs)

    def verify(pair):
        return pair[0].verify_after(pair[0].transport, pair[1])

    with ThreadPoolExecutor(3) as pool:
        digests = list(pool.map(verify, pairs))
    assert digests == [switch.digest for switch, _ in pairs]


def test_a_state_that_changed_on_its_way_into_the_engine_is_refused():
    pairs = switches(change(OLD, NEW))
    run(pairs)
    moved, held = pairs[2]
    held.read(moved.move.pieces_after()[0])[1].view(-1)[0] += 1.0

    def verify(pair):
        try:
            return pair[0].verify_after(pair[0].transport, pair[1])
        except TransferFailed as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        errors = list(pool.map(verify, pairs))
    assert all(isinstance(e, TransferFailed) and "after the change" in str(e) for e in errors), (
        errors
    )
