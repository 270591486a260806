"""state/held_state.py: state is read by piece, whatever cut it is held in."""

from __future__ import annotations

import operator

import pytest
import torch

from migration.slices import Slice
from planner.model.arithmetic import INITIAL_DEVIATION
from planner.model.tensors import layer_tensors, model_tensors
from planner.plans.pieces import Piece, held_pieces, shard
from planner.plans.ranks import RankMap
from planner.plans.regions import Cuts
from planner.plans.state_rule import PARTS
from tests.builders import seat_pieces
from tests.equal_tensors import are_equal
from tests.unit.worker.changes import MODEL, cut, plan, shards_of, whole_state
from worker.control.activity import Activity
from worker.model.boxes import view
from worker.model.initial_weights import initial_rows
from worker.state.held_state import HeldState, all_pieces, find_tensor
from worker.state.shards import TargetShards


def seats(tp):
    return RankMap.of(plan(f"{tp}x2")).seats


def held_at(*held):
    """(what ranks at those seats hold together, their shards)."""
    state, shards = HeldState(MODEL), [shards_of(seat, whole_state()) for seat in held]
    for seat, tensors in zip(held, shards, strict=True):
        state.add_shards(seat, tensors)
    return state, shards


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_piece_of_any_cut_is_a_view_of_the_live_tensor(tp):
    cuts = Cuts(frozenset({tp, 4}))
    for seat in seats(tp):
        state, (shards,) = held_at(seat)
        for piece in seat_pieces(MODEL, seat, cuts):
            wanted = cut(piece, whole_state())
            for part, live, expected in zip(
                state.read(piece), shards[piece.tensor], wanted, strict=True
            ):
                assert torch.equal(part, expected)
                assert part.untyped_storage().data_ptr() == live.untyped_storage().data_ptr()


def test_a_view_is_written_through():
    (seat,) = seats(1)
    _, (shards,) = held_at(seat)
    tensor = find_tensor(MODEL, "1.o")  # cut along its columns
    piece = Piece("1.o", 4, 8)
    for part in view(tensor, shard(tensor, seat), shards["1.o"], piece):
        part.fill_(7.0)
    for part, before in zip(shards["1.o"], whole_state()["1.o"], strict=True):
        assert torch.equal(part[:, 4:8], torch.full_like(part[:, 4:8], 7.0))
        assert torch.equal(part[:, :4], before[:, :4])
        assert torch.equal(part[:, 8:], before[:, 8:])


def test_a_piece_is_joined_from_the_shards_of_two_layouts():
    """A rank that never learnt the outcome of a vote holds half of each tensor twice over."""
    state, _ = held_at(*seats(2))
    for piece in all_pieces(MODEL, Cuts(frozenset({1}))):
        assert are_equal(state.read(piece), cut(piece, whole_state()))


def test_of_two_layouts_the_one_that_reaches_further_is_read():
    """It is one view then, and no copy."""
    first, _ = seats(2)
    (whole,) = seats(1)
    state, (_, shards) = held_at(first, whole)
    for part, live in zip(state.read(Piece("1.q", 0, 16)), shards["1.q"], strict=True):
        assert part.data_ptr() == live.data_ptr()


def test_a_box_is_found_only_as_it_is():
    first, second = seats(2)
    (whole,) = seats(1)
    state, (shards,) = held_at(first)
    for tensor in model_tensors(MODEL):
        assert all(map(operator.is_, state.exactly(shard(tensor, first)), shards[tensor.name]))
        if tensor.dim is not None:
            assert state.exactly(shard(tensor, second)) is None
            assert state.exactly(shard(tensor, whole)) is None


def test_a_piece_of_which_rows_are_missing_is_a_key_error():
    first, _ = seats(2)
    state, _ = held_at(first)
    with pytest.raises(KeyError):
        state.read(Piece("1.q", 0, 16))


@pytest.mark.parametrize("parts", [("weight",), ("exp_avg", "exp_avg_sq"), ("exp_avg_sq",)])
def test_a_slice_gives_the_parts_that_it_names_and_no_other(parts):
    (seat,) = seats(1)
    state, (shards,) = held_at(seat)
    wanted = Slice(Piece("1.q", 0, 16), 4, 8, parts)
    found = dict(zip(parts, state.read_slice(wanted), strict=True))
    for name, part in zip(PARTS, shards["1.q"], strict=True):
        assert name not in found or torch.equal(found[name], part[4:8])
    target = TargetShards.of(MODEL, seat, HeldState(MODEL), Activity())
    for part in target.view(find_tensor(MODEL, "1.q"), wanted.box, wanted.parts):
        part.fill_(7.0)
    written = [name for name, p in zip(PARTS, target.shards["1.q"], strict=True) if p.any()]
    assert tuple(written) == parts


def test_a_piece_that_is_not_held_is_a_key_error():
    with pytest.raises(KeyError):
        HeldState(MODEL).read(Piece("1.q", 0, 4))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_initial_weights_do_not_depend_on_the_cut(tp):
    for layer in range(MODEL.layers + 2):
        for tensor in layer_tensors(MODEL, layer):
            if tensor.dim is None:
                continue
            size = tensor.shape[tensor.dim]
            whole = initial_rows(3, INITIAL_DEVIATION, tensor, 0, size)
            parts = [
                initial_rows(3, INITIAL_DEVIATION, tensor, i * size // tp, (i + 1) * size // tp)
                for i in range(tp)
            ]
            assert torch.equal(whole, torch.cat(parts, dim=tensor.dim))
            cuts = Cuts(frozenset({tp}))
            assert sum(len(held_pieces(tensor, seat, cuts)) for seat in seats(tp)) == tp
