"""Who sends: the same node first, then the least loaded; scarce and large pieces choose first."""

from __future__ import annotations

from collections import Counter

import pytest

from migration.errors import StateLost
from migration.layout import StateLayout
from migration.tuples import CHUNK_BYTES, MigrationTuple, bytes_minimum, difference
from planner.plans.pieces import Piece

A, B, C = (Piece(name, 0, 1) for name in ("1.q", "2.q", "3.q"))


def layout(*rows):
    return StateLayout(tuple(tuple(row) for row in rows))


def senders(moves):
    return [(move.piece, move.sender, move.receiver) for move in moves]


def test_a_local_copy_is_no_tuple():
    moves = difference(layout([A], []), layout([A], [A]), {A: 5}, "xy")
    assert moves == (MigrationTuple(A, 0, 1, 0, 5),)


def test_a_holder_on_the_node_of_the_receiver_sends_even_if_it_is_busier():
    held = layout([A, B], [A, B], [])
    moves = difference(held, layout([], [], [A, B]), {A: 5, B: 5}, ["far", "near", "near"])
    assert senders(moves) == [(A, 1, 2), (B, 1, 2)]


def test_equal_holders_take_turns():
    held = layout([A, B, C], [A, B, C], [])
    moves = difference(held, layout([], [], [A, B, C]), {A: 5, B: 5, C: 5}, "xyz")
    assert senders(moves) == [(A, 0, 2), (B, 1, 2), (C, 0, 2)]


def test_equal_holders_on_the_node_of_the_receiver_take_turns():
    held = layout([A, B, C], [A, B, C], [])
    moves = difference(held, layout([], [], [A, B, C]), {A: 5, B: 5, C: 5}, "xxx")
    assert senders(moves) == [(A, 0, 2), (B, 1, 2), (C, 0, 2)]


def test_ranks_of_one_node_share_its_network_card():
    """Ranks 0 and 1 share node x; after rank 0 sent, node y is less loaded than rank 1's."""
    held = layout([A, B], [A, B], [A, B], [])
    moves = difference(held, layout([], [], [], [A, B]), {A: 5, B: 5}, "xxyz")
    assert senders(moves) == [(A, 0, 3), (B, 2, 3)]


def test_the_scarcest_piece_chooses_first_then_the_largest():
    held = layout([A, B, C], [B, C], [])
    moves = difference(held, layout([], [], [A, B, C]), {A: 1, B: 2, C: 9}, "xyz")
    assert [move.piece for move in moves] == [A, C, B]


def test_a_large_piece_is_cut_and_shared_among_its_holders():
    size = 4 * CHUNK_BYTES + 12
    held = layout([A], [A], [])
    moves = difference(held, layout([], [], [A]), {A: size}, "xyz")
    sent = Counter()
    for move in moves:
        sent[move.sender] += move.num_bytes
    assert max(move.num_bytes for move in moves) == CHUNK_BYTES
    assert sum(sent.values()) == size
    assert abs(sent[0] - sent[1]) <= CHUNK_BYTES


def test_lost_state_names_tensor_and_slice():
    lost = Piece("4.o", 8, 16)
    with pytest.raises(StateLost, match=r"slice \[8, 16\) of tensor o in layer 4"):
        difference(layout([A], []), layout([A], [lost]), {A: 1, lost: 1}, "xy")


def test_a_piece_that_nobody_needs_may_be_lost():
    assert difference(layout([A]), layout([A]), {A: 1, B: 1}, "x") == ()


def test_the_minimum_counts_each_receiver_of_a_piece():
    assert bytes_minimum(layout([A], [], []), layout([A], [A], [A]), {A: 5}) == 10
