"""worker/engine/gradient_sync.py: one sum and one norm over unequal pipelines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.tensors import model_tensors
from planner.plans.pieces import holders
from planner.plans.ranks import RankMap
from planner.plans.regions import common_refinement
from tests.builders import piece_shapes, seat_pieces
from tests.distributed.pods import place, template
from tests.families import MIXTURES
from tests.peak_memory import peak_bytes
from tests.unit.worker.changes import MODEL, cut, plan
from tests.unit.worker.ranks import run_ranks
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.engine import gradient_sync
from worker.engine.gradient_sync import GradientSync, norm_of, step_norm
from worker.state.held_state import all_pieces
from worker.world.world import World, rank_sets

UNEQUAL = plan("2x1+1x1", "1x2")
WEIGHTS = (0.75, 0.25)  # of the two pipelines: three quarters of the batch, and one
MIXTURE = MIXTURES["mixtral"]
SPREAD = place(  # EP 2 over two replicas, then two replicas with all experts each
    (
        replace(one := template("1x4", 1, 1, 1), stages=(replace(one.stages[0], ep=2, etp=1),)),
        template("1x4", 1, 1, 1),
    ),
    [("a", gpu) for gpu in range(4)],
)
SHAPES = ("1x2", "2x2", "4x2", "1x1+1x1", "2x1+1x1", "1x1+4x1")


def gradient_of(pipeline):
    """{tensor: (gradient,)} that a pipeline's own samples give, any numbers."""
    generator = torch.Generator().manual_seed(pipeline)
    shapes = {t.name: t.shape for t in model_tensors(MODEL)}
    return {n: (torch.randn(shape, generator=generator),) for n, shape in shapes.items()}


def gradients_of(seat, trained, pipeline=None):
    """{piece: gradient} as the rank at `seat` has it after its backward passes."""
    whole = gradient_of(seat.pipeline.template_index if pipeline is None else pipeline)
    pieces = seat_pieces(MODEL, seat, common_refinement([trained]))
    return {piece: cut(piece, whole)[0].clone() for piece in pieces}


def sync_of(trained, seat, gradients, world=None):
    """What needs no other rank needs no world either."""
    return GradientSync(MODEL, trained, seat, world, lambda: gradients)


@settings(max_examples=10)
@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
def test_every_piece_counts_once_in_the_norm_whoever_holds_it(shapes):
    trained = plan(*shapes)
    squares = []
    for seat in RankMap.of(trained).seats:
        sync = sync_of(trained, seat, gradients_of(seat, trained, pipeline=0))
        squares.append(sync.squares())
        assert len(squares[-1]) == sync.num_pieces == len(holders(MODEL, trained))
    assert all(int((row > 0).sum()) == 1 for row in torch.stack(squares).T)
    whole = torch.cat([parts[0].reshape(-1) for parts in gradient_of(0).values()]).double()
    assert torch.stack(squares).sum().item() == pytest.approx(whole.square().sum().item(), rel=1e-9)


def test_pipelines_share_the_work_of_the_norm():
    trained = plan("1x2", "1x2")
    owned = [
        int((sync_of(trained, seat, gradients_of(seat, trained)).squares() > 0).sum())
        for seat in RankMap.of(trained).seats
    ]
    assert max(owned) - min(owned) <= 1


@pytest.mark.parametrize("at_once", [1, 40, 10**6])
def test_a_piece_has_the_same_square_whatever_tensor_it_is_a_view_of(at_once, monkeypatch):
    """Columns of a wide tensor, as under another TP degree, against a tensor of their own."""
    monkeypatch.setattr(gradient_sync, "SQUARED_AT_ONCE", at_once)
    trained = plan("1x2")
    (seat,) = RankMap.of(trained).seats
    own = gradients_of(seat, trained)
    wide = {piece: torch.zeros(*g.shape[:-1], 2 * g.shape[-1]) for piece, g in own.items()}
    views = {piece: wide[piece][..., : g.shape[-1]].copy_(g) for piece, g in own.items()}
    assert any(not view.is_contiguous() for view in views.values())
    squares = [sync_of(trained, seat, one).squares() for one in (own, views)]
    assert torch.equal(*squares)
    expected = [g.double().square().sum().item() for g in own.values()]
    assert squares[0].tolist() == pytest.approx(expected, rel=1e-12)


def test_squares_take_memory_of_some_rows(monkeypatch):
    monkeypatch.setattr(gradient_sync, "SQUARED_AT_ONCE", 64)
    trained = plan("1x2")
    (seat,) = RankMap.of(trained).seats
    sync = sync_of(trained, seat, gradients_of(seat, trained))
    table_bytes = 8 * sync.num_pieces
    assert peak_bytes(sync.squares) <= table_bytes + 8 * 64 + 64


@given(st.lists(st.floats(0, 1e30), min_size=1, max_size=20), st.randoms())
def test_the_norm_has_the_same_bits_in_whatever_order_it_is_summed(squares, random):
    shuffled = list(squares)
    random.shuffle(shuffled)
    first, second = (norm_of(torch.tensor(of, dtype=torch.float64)) for of in (squares, shuffled))
    assert first == second == pytest.approx(math.sqrt(sum(squares)), rel=1e-12)


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_square_without_end_gives_a_norm_that_is_not_finite(wrong):
    assert not math.isfinite(norm_of(torch.tensor([1.0, wrong], dtype=torch.float64)))


def test_one_rank_alone_keeps_its_gradient():
    trained = plan("1x2")
    (seat,) = RankMap.of(trained).seats
    gradients = gradients_of(seat, trained)
    sync_of(trained, seat, gradients).sum_()
    before = gradients_of(seat, trained)
    assert all(torch.equal(gradients[piece], before[piece]) for piece in before)


def claims(rank, store):
    """The summed gradient and the squares of one of four ranks, by the size of the bucket."""
    seat = RankMap.of(UNEQUAL).seats[rank]
    world = World(store, 1, rank, 4, rank_sets(MODEL, UNEQUAL), Activity(), device=CPU)
    found = []
    for size in (gradient_sync.WORKER_BUCKET, 500, 24):  # 24 is less than two rows of a matrix
        gradient_sync.WORKER_BUCKET = size
        gradients = gradients_of(seat, UNEQUAL)
        sync = sync_of(UNEQUAL, seat, gradients, world)
        for gradient in gradients.values():
            gradient.mul_(WEIGHTS[seat.pipeline.template_index])
        sync.sum_()
        assert sync.bucket.memory.numel() <= size
        squares = sync.squares()
        world.all_reduce_(squares, "sum")
        told = {repr(tuple(piece)): gradient.tolist() for piece, gradient in gradients.items()}
        found.append((told, squares.tolist()))
    world.leave(wait=True)
    return found


@pytest.fixture(scope="module")
def sums():
    return run_ranks("tests.unit.worker.engine.test_gradient_sync:claims", 4)


@pytest.mark.slow
def test_a_small_bucket_gives_the_bits_of_a_large_one(sums):
    for large, *small in sums:
        assert small == [large, large]


@pytest.mark.slow
def test_all_holders_of_a_piece_get_the_same_bits_of_the_weighted_sum(sums):
    found = [by_size[0] for by_size in sums]
    first, second = gradient_of(0), gradient_of(1)
    total = {n: (WEIGHTS[0] * first[n][0] + WEIGHTS[1] * second[n][0],) for n in first}
    expected_squares = []
    for piece in all_pieces(MODEL, common_refinement([UNEQUAL])):
        told = [sums[repr(tuple(piece))] for sums, _ in found if repr(tuple(piece)) in sums]
        assert len(told) >= 2
        assert all(one == told[0] for one in told)
        expected = cut(piece, total)[0]
        assert torch.allclose(torch.tensor(told[0]), expected, atol=1e-6, rtol=1e-5)
        expected_squares.append(torch.tensor(told[0]).double().square().sum().item())
    assert all(squares == found[0][1] for _, squares in found)
    assert found[0][1] == pytest.approx(expected_squares, rel=1e-9)


def claims_of_experts(rank, store):
    """{piece: its numbers}, once summed, of one of four ranks, whose gradients are its number."""
    seat = RankMap.of(SPREAD).seats[rank]
    world = World(store, 1, rank, 4, rank_sets(MIXTURE, SPREAD), Activity(), device=CPU)
    cuts = common_refinement([SPREAD])
    shapes = piece_shapes(MIXTURE, cuts)
    gradients = {
        piece: torch.full(shapes[piece], rank + 1.0) for piece in seat_pieces(MIXTURE, seat, cuts)
    }
    GradientSync(MIXTURE, SPREAD, seat, world, lambda: gradients).sum_()
    world.leave(wait=True)
    return {repr(tuple(piece)): gradient.unique().tolist() for piece, gradient in gradients.items()}


@pytest.mark.slow
def test_gradients_of_experts_are_added_over_all_copies_and_divided_by_nothing():
    answers = run_ranks("tests.unit.worker.engine.test_gradient_sync:claims_of_experts", 4)
    copies = set()
    for piece, owners in holders(MIXTURE, SPREAD).items():
        ranks = sorted(rank for of in owners for rank in of)
        copies |= {len(ranks)} if "experts" in piece.tensor else set()
        for rank in ranks:
            assert answers[rank][repr(tuple(piece))] == [sum(ranks) + len(ranks)]
    assert copies == {3}  # one of the first template, two of the second


@pytest.mark.parametrize("other", [math.inf, -math.inf, math.nan])
def test_a_step_is_finite_if_loss_and_norm_are(other):
    assert step_norm(2.0, 3.0) == 3.0
    assert math.isnan(step_norm(other, 3.0))
    assert step_norm(2.0, other) == math.inf
