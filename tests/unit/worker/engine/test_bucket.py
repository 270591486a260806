"""worker/engine/bucket.py: every number in one message, none larger than the bucket."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.formulas import bucket_messages
from planner.cost.memory import WORKER_BUCKET
from planner.model.catalogue import find_model
from planner.model.tensors import model_tensors
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


def test_the_planner_prices_as_many_messages_as_there_are():
    """A bucket closes at a whole row: two in a row are more than one full, or it would be one."""
    model = find_model("gpt-neo-2.7b")
    shapes = {
        Piece(tensor.name, 0, tensor.shape[0]): tensor.shape for tensor in model_tensors(model)
    }
    sent = len(messages_of({(0, 1): list(shapes)}, shapes, WORKER_BUCKET))
    numel = sum(math.prod(shape) for shape in shapes.values())
    priced = bucket_messages(4.0 * numel, 4.0 * WORKER_BUCKET)
    assert 600 < priced <= sent < 2 * priced


def test_what_fits_is_one_message_for_each_set():
    pieces = {Piece("1.q", 0, 4): (4, 8), Piece("1.norm1", 0, 8): (8,)}
    messages = messages_of({(0, 1): list(pieces), (0, 1, 2): list(pieces)}, pieces, 40)
    assert [message.numel for message in messages] == [40, 40]
    assert math.prod(pieces[Piece("1.q", 0, 4)]) + 8 == 40
