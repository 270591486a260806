"""worker/engine/bucket.py: every number in one message, none larger than the bucket."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.plans.pieces import Piece
from worker.engine.bucket import messages_of

shapes = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple), max_size=5)


@given(shapes, shapes, st.integers(1, 50))
def test_messages_hold_every_number_once_and_keep_within_the_bucket(first, second, most):
    found = {Piece(f"{index}.w", 0, 1): shape for index, shape in enumerate([*first, *second])}
    pieces = list(found)
    sets = {(1, 2): pieces[: len(first)], (0, 2): pieces[len(first) :]}
    messages = messages_of(sets, found, most)
    assert [message.ranks for message in messages] == sorted(m.ranks for m in messages)
    counts = {piece: torch.zeros(shape) for piece, shape in found.items()}
    for message in messages:
        for piece, index in message.blocks:
            assert piece in sets[message.ranks]
            counts[piece][index] += 1
        sizes = [counts[piece][index].numel() for piece, index in message.blocks]
        assert 0 < sum(sizes) == message.numel <= most
    assert all(bool((count == 1).all()) for count in counts.values())


def test_what_fits_is_one_message_for_each_set():
    pieces = {Piece("1.q", 0, 4): (4, 8), Piece("1.norm1", 0, 8): (8,)}
    messages = messages_of({(0, 1): list(pieces), (0, 1, 2): list(pieces)}, pieces, 40)
    assert [message.numel for message in messages] == [40, 40]
    assert math.prod(pieces[Piece("1.q", 0, 4)]) + 8 == 40
