"""Rounds of messages: coalesced, cut, limited, and the same on every rank."""

from __future__ import annotations

from collections import Counter

import pytest

from migration.schedule import MAX_OPERATIONS, Message, Schedule, arrange, faults, schedule_digest
from migration.tuples import MigrationTuple
from planner.plans.pieces import Piece

PIECE = Piece("1.q", 0, 1)


def move(sender, receiver, start=0, stop=10, piece=PIECE):
    return MigrationTuple(piece, sender, receiver, start, stop)


def test_tuples_of_a_pair_travel_in_one_message():
    moves = (move(0, 1), move(2, 1), move(0, 1, piece=Piece("2.q", 0, 1)))
    (messages,) = arrange(moves).rounds
    assert {(m.sender, m.receiver): len(m.tuples) for m in messages} == {(0, 1): 2, (2, 1): 1}


def test_a_message_is_cut_before_it_passes_the_limit():
    moves = tuple(move(0, 1, 10 * k, 10 * k + 10) for k in range(5))
    sizes = [m.num_bytes for messages in arrange(moves, chunk_bytes=25).rounds for m in messages]
    assert sizes == [20, 20, 10]


def test_no_rank_has_more_than_32_operations_in_a_round():
    """Rank 0 sends 100 messages and receives 20."""
    moves = tuple(move(0, 1 + k % 5, 16 * k, 16 * k + 16) for k in range(100))
    moves += tuple(move(1 + k % 5, 0, 16 * k, 16 * k + 16) for k in range(20))
    schedule = arrange(moves, chunk_bytes=16)
    for messages in schedule.rounds:
        operations = Counter(end for m in messages for end in (m.sender, m.receiver))
        assert max(operations.values()) <= MAX_OPERATIONS
    assert len(schedule.rounds) == 4  # 120 operations of rank 0
    assert faults(schedule, moves) == ()


def test_pairs_run_side_by_side_from_the_first_round():
    moves = tuple(move(s, 4 + s, 16 * k, 16 * k + 16) for s in range(4) for k in range(40))
    first = arrange(moves, chunk_bytes=16, max_operations=8).rounds[0]
    assert Counter(m.sender for m in first) == {0: 8, 1: 8, 2: 8, 3: 8}


def test_nothing_to_move_is_no_round():
    assert arrange(()) == Schedule(())
    assert faults(arrange(()), ()) == ()


def test_the_digest_differs_with_any_byte_peer_or_order():
    moves = (move(0, 1), move(1, 2))
    others = [
        (move(0, 1), move(1, 3)),
        (move(0, 1), move(2, 1)),
        (move(0, 1), move(1, 2, stop=11)),
        (move(0, 1), move(1, 2, piece=Piece("2.q", 0, 1))),
    ]
    digests = {schedule_digest(arrange(tuples)) for tuples in [moves, *others]}
    assert len(digests) == 5
    assert all(0 <= digest < 1 << 63 for digest in digests)
    assert schedule_digest(arrange(moves)) == schedule_digest(arrange(moves))


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "is not carried"),
        ([Message(0, 1, (move(0, 1),))] * 2, "is carried but was not asked for"),
        ([Message(0, 2, (move(0, 1),))], "a tuple of another pair"),
        ([Message(0, 0, (move(0, 0),))], "goes to its own sender"),
        ([Message(0, 1, (move(0, 1, stop=99),))], "has 99 bytes, 1 to 50 are allowed"),
        ([Message(0, 1, (move(0, 1),))] * 5, "gives rank 0 5 operations, 4 are allowed"),
    ],
    ids=["lost", "twice", "wrong pair", "to itself", "too large", "too many"],
)
def test_faults_names_what_is_wrong(messages, fault):
    found = faults(Schedule((tuple(messages),)), (move(0, 1),), chunk_bytes=50, max_operations=4)
    assert any(fault in sentence for sentence in found)
