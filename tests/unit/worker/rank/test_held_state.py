"""State is read by piece, whatever cut it came in."""

import pytest
import torch

from planner.model.shape import ModelShape
from planner.model.tensors import layer_tensors
from planner.plans.pieces import Piece, held_pieces, seat_pieces
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from worker.model.initial_weights import initial_rows
from worker.rank.held_state import HeldState

MODEL = ModelShape("small", layers=2, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=64)


def seats(tp: int):
    plan = Plan(
        (FilledTemplate((Stage("demo-fast", tp, 2),), 1, (1,)),),
        (PlacedStage(0, 0, 0, "a", tuple(range(tp))),),
    )
    return RankMap.of(plan).seats


def shards(seat):
    found = {}
    for layer in seat.layers:
        for tensor in layer_tensors(MODEL, layer):
            size = tensor.shape[tensor.dim or 0]
            weight = initial_rows(
                1, tensor, seat.slot * size // seat.tp, (seat.slot + 1) * size // seat.tp
            )
            found[tensor.name] = (weight, weight + 1, weight + 2)
    return found


@pytest.mark.parametrize("old", [1, 2, 4])
@pytest.mark.parametrize("new", [1, 2, 4])
def test_shards_of_any_cut_are_assembled_from_pieces_of_another(old: int, new: int) -> None:
    cuts = frozenset({old, new})
    sources = []
    for seat in seats(old):
        state = HeldState(MODEL)
        state.add_shards(seat, shards(seat))
        sources.append((set(seat_pieces(MODEL, seat, cuts)), state))
    for seat in seats(new):
        state = HeldState(MODEL)
        state.add_pieces(
            {
                p: next(s.read(p) for held, s in sources if p in held)
                for p in seat_pieces(MODEL, seat, cuts)
            }
        )
        for layer in seat.layers:
            for tensor in layer_tensors(MODEL, layer):
                for found, wanted in zip(
                    state.shard(tensor, seat, cuts), shards(seat)[tensor.name], strict=True
                ):
                    assert torch.equal(found, wanted)


def test_a_piece_is_joined_from_an_old_shard_and_what_arrived_beside_it() -> None:
    """The engine of a TP 1 seat never came up: half of each tensor is its old shard, half came."""
    (whole,) = seats(1)
    old, other = seats(2)
    state = HeldState(MODEL)
    state.add_shards(old, shards(old))
    elsewhere = HeldState(MODEL)
    elsewhere.add_shards(other, shards(other))
    cuts = frozenset({1, 2})
    state.add_pieces({p: elsewhere.read(p) for p in seat_pieces(MODEL, other, cuts)})
    for piece in seat_pieces(MODEL, whole, frozenset({1})):
        wanted = shards(whole)[piece.tensor]
        assert all(torch.equal(a, b) for a, b in zip(state.read(piece), wanted, strict=True))


def test_a_piece_of_which_rows_are_missing_is_a_key_error() -> None:
    state = HeldState(MODEL)
    first, _ = seats(2)
    state.add_shards(first, shards(first))
    with pytest.raises(KeyError):
        state.read(Piece("1.q", 0, 16))


def test_a_piece_that_is_not_held_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        HeldState(MODEL).read(Piece("1.q", 0, 4))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_initial_weights_do_not_depend_on_the_cut(tp: int) -> None:
    for layer in range(MODEL.layers + 2):
        for tensor in layer_tensors(MODEL, layer):
            if tensor.dim is None:
                continue
            size = tensor.shape[tensor.dim]
            whole = initial_rows(3, tensor, 0, size)
            cut = [initial_rows(3, tensor, i * size // tp, (i + 1) * size // tp) for i in range(tp)]
            assert torch.equal(whole, torch.cat(cut, dim=tensor.dim))
            assert (
                sum(len(held_pieces(tensor, tp, slot, frozenset({tp}))) for slot in range(tp)) == tp
            )
