"""Laws of what moves: only missing bytes, from holders, in a schedule that both ends agree on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migration.errors import StateLost
from migration.schedule import arrange, faults, schedule_digest
from migration.tuples import bytes_minimum, bytes_missing, difference
from planner.model.tensors import model_tensors
from planner.plans.plan import Plan
from tests.laws.changes import MODEL, Change, changes, plans


def moves_of(change: Change, chunk_bytes: int = 64):
    return difference(change.held, change.needed, change.piece_bytes, change.node_of, chunk_bytes)


@given(plans())
def test_nothing_moves_between_equal_plans(plan: Plan):
    change = Change(plan, plan, frozenset())
    assert moves_of(change) == ()
    assert bytes_minimum(change.held, change.needed, change.piece_bytes) == 0


@given(changes())
def test_every_rank_gets_each_missing_byte_once_and_nothing_else(change: Change):
    arrived = {}
    for move in moves_of(change):
        arrived.setdefault((move.receiver, move.piece), []).append((move.start, move.stop))
    rows = zip(change.held.pieces, change.needed.pieces, strict=True)
    missing = {(rank, p) for rank, (before, after) in enumerate(rows) for p in {*after} - {*before}}
    assert set(arrived) == missing
    for (_, piece), runs in arrived.items():
        cuts = sorted(runs)
        assert cuts[0][0] == 0
        assert cuts[-1][1] == change.piece_bytes[piece]
        assert all(left[1] == right[0] for left, right in pairwise(cuts))


@given(changes())
def test_bytes_moved_are_the_minimum(change: Change):
    received = Counter()
    for move in moves_of(change):
        received[move.receiver] += move.num_bytes
    missing = bytes_missing(change.held, change.needed, change.piece_bytes)
    assert [received[rank] for rank in range(len(missing))] == list(missing)
    assert sum(missing) == bytes_minimum(change.held, change.needed, change.piece_bytes)


@given(changes())
def test_a_sender_holds_what_it_sends_and_is_on_the_node_of_the_receiver_if_any_holder_is(
    change: Change,
):
    holders, node_of = change.held.holders(), change.node_of
    for move in moves_of(change):
        assert move.sender in holders[move.piece]
        near = [rank for rank in holders[move.piece] if node_of[rank] == node_of[move.receiver]]
        assert move.sender in (near or holders[move.piece])


@given(changes(losses=True))
def test_state_is_lost_exactly_when_a_needed_piece_has_no_holder(change: Change):
    holders = change.held.holders()
    lost = [piece for row in change.needed.pieces for piece in row if piece not in holders]
    if not lost:
        assert faults(arrange(moves_of(change)), moves_of(change)) == ()
        return
    with pytest.raises(StateLost, match="no live rank holds"):
        moves_of(change)


@given(changes(), st.randoms(use_true_random=False))
def test_the_order_of_dictionaries_and_rows_changes_nothing(change: Change, random):
    def shuffled(items):
        items = list(items)
        random.shuffle(items)
        return items

    held = type(change.held)(tuple(tuple(shuffled(row)) for row in change.held.pieces))
    needed = type(change.needed)(tuple(tuple(shuffled(row)) for row in change.needed.pieces))
    sizes = dict(shuffled(change.piece_bytes.items()))
    moves = difference(held, needed, sizes, change.node_of, 64)
    assert moves == moves_of(change)
    assert schedule_digest(arrange(moves)) == schedule_digest(arrange(moves_of(change)))


@given(changes(), st.integers(64, 512), st.integers(1, 8))
def test_a_schedule_carries_every_tuple_once_within_the_limits(change, chunk_bytes, operations):
    moves = moves_of(change, 64)
    schedule = arrange(moves, chunk_bytes, operations)
    assert faults(schedule, moves, chunk_bytes, operations) == ()
    assert schedule.num_bytes == sum(move.num_bytes for move in moves)


@given(changes(), st.integers(1, 8))
def test_messages_of_a_pair_keep_their_order_over_rounds(change, operations):
    moves = moves_of(change, 64)
    carried = {}
    for messages in arrange(moves, 128, operations).rounds:
        for message in messages:
            carried.setdefault((message.sender, message.receiver), []).extend(message.tuples)
    for pair, order in carried.items():
        assert order == [move for move in moves if (move.sender, move.receiver) == pair]


def test_the_model_of_the_laws_has_every_kind_of_tensor():
    assert {tensor.dim for tensor in model_tensors(MODEL)} == {None, 0, 1}
