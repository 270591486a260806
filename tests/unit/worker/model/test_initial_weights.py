"""model/initial_weights.py: the numbers depend on seed, name and row, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.model.arithmetic import INITIAL_DEVIATION
from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from worker.model.initial_weights import initial_rows

MODEL = ModelShape(name="small", layers=2, hidden=16, heads=4, kv_heads=4, ffn=40, vocab=68)
TENSORS = model_tensors(MODEL)
CUT = [tensor for tensor in TENSORS if tensor.dim is not None]


def whole(tensor, seed=1):
    return initial_rows(seed, INITIAL_DEVIATION, tensor, 0, tensor.shape[tensor.dim or 0])


@given(st.sampled_from(CUT), st.data())
def test_any_rows_are_those_of_the_whole_tensor(tensor, data):
    size = tensor.shape[tensor.dim]
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    rows = initial_rows(1, INITIAL_DEVIATION, tensor, start, stop)
    assert rows.is_contiguous()
    assert torch.equal(rows, whole(tensor).narrow(tensor.dim, start, stop - start))


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: tensor.name)
def test_a_whole_tensor_has_its_shape_in_fp32(tensor):
    assert tuple(whole(tensor).shape) == tuple(tensor.shape)
    assert whole(tensor).dtype == torch.float32


def test_norms_start_at_one_whatever_rows_are_asked():
    (norm,) = (tensor for tensor in TENSORS if tensor.name == "1.norm1")
    assert torch.equal(initial_rows(1, INITIAL_DEVIATION, norm, 0, 1), torch.ones(1))


def test_every_seed_every_tensor_and_every_block_has_numbers_of_its_own():
    q, k = (Tensor(f"1.{name}", (16, 16), 0) for name in "qk")
    eighths = [block for t, seed in ((q, 1), (k, 1), (q, 2)) for block in whole(t, seed).chunk(8)]
    assert len({tuple(block.reshape(-1).tolist()) for block in eighths}) == 24


def test_matrices_are_spread_as_stated():
    weights = whole(Tensor("0.weight", (512, 64), 0))
    assert weights.std().item() == pytest.approx(INITIAL_DEVIATION, rel=0.02)
    assert abs(weights.mean().item()) < 5e-4


def test_the_numbers_are_the_same_on_every_machine_and_version():
    """Written down once; if they change, the loss curves of all jobs change."""
    found = whole(Tensor("1.q", (16, 16), 0))[0, :4].tolist()
    assert found == pytest.approx([-0.0193685, -0.0165746, 0.0097615, 0.0078979], abs=1e-7)


def test_biases_start_at_zero_and_rows_that_no_token_has_stay_there():
    assert not initial_rows(1, INITIAL_DEVIATION, Tensor("1.q_bias", (16,), 0), 4, 8).any()
    padded = Tensor("0.weight", (128, 16), 0, padding=28)
    assert not initial_rows(1, INITIAL_DEVIATION, padded, 64, 128)[36:].any()
    assert initial_rows(1, INITIAL_DEVIATION, padded, 64, 128)[:36].all()
    assert initial_rows(1, INITIAL_DEVIATION, padded, 0, 64).all()
