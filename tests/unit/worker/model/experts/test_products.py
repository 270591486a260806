"""worker/model/experts/products.py: together or one by one, the bits are the same."""

from __future__ import annotations

import pytest
import torch

from tests.peak_memory import peak_bytes
from worker.model.experts.products import Stack, grouped, is_grouped, looped


def case(rows, wide=8, dtype=torch.float32):
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(sum(rows), 16, generator=draw).to(dtype).requires_grad_()
    weight = torch.randn(len(rows), wide, 16, generator=draw).to(dtype).requires_grad_()
    ends = torch.tensor(rows).cumsum(0).to(torch.int32)
    return x, weight, ends


def found(compute, rows, dtype):
    x, weight, ends = case(rows, dtype=dtype)
    out = compute(x, weight, ends)
    (out * torch.arange(1.0, out.numel() + 1).view(out.shape).to(dtype)).sum().backward()
    return out, x.grad, weight.grad


@pytest.mark.parametrize("rows", [[5, 9, 4], [0, 7, 0, 6], [30]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_grouped_products_have_the_bits_of_a_loop_forward_and_backward(rows, dtype):
    x, weight, _ = case(rows, dtype=dtype)
    assert is_grouped(x, weight)
    for one, other in zip(found(grouped, rows, dtype), found(looped, rows, dtype), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("rows", "wide", "dtype"),
    [([0, 0], 8, torch.float32), ([3, 2], 7, torch.float32), ([3, 2], 8, torch.float64)],
)
def test_a_loop_takes_what_torch_does_not_take_together(rows, wide, dtype):
    x, weight, ends = case(rows, wide, dtype)
    assert not is_grouped(x, weight)
    out = grouped(x, weight, ends)
    assert out.shape == (sum(rows), wide)
    out.sum().backward()
    assert weight.grad.shape == weight.shape


WIDTH, WIDE = 64, 256  # of a row, and of an expert


def stack_of(experts, dtype):
    draw = torch.Generator().manual_seed(4)
    shapes = (experts, WIDE, WIDTH), (experts, WIDE, WIDTH), (experts, WIDTH, WIDE)
    gate, up, down = (
        (torch.randn(shape, generator=draw) / 16).to(dtype).requires_grad_() for shape in shapes
    )
    return Stack(gate, up, down, torch.nn.functional.silu)


def pass_of(sizes, most, dtype):
    """(result, gradients, bytes besides rows and weights that the backward pass is kept)."""
    stack = stack_of(len(sizes), dtype)
    x = torch.randn(sum(sizes), WIDTH, generator=torch.Generator().manual_seed(5))
    x, ends = x.to(dtype).requires_grad_(), torch.tensor(sizes).cumsum(0).to(torch.int32)
    given = {t.untyped_storage().data_ptr() for t in (x, ends, *stack[:3])}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given and tensor.dtype == dtype:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = stack.bounded(x, ends, sizes, most)
    slope = (torch.arange(1.0, out.numel() + 1).view(out.shape) / out.numel()).to(dtype)
    return (out, *torch.autograd.grad(out, (x, *stack[:3]), slope)), sum(kept.values())


UNEVEN = [
    ([40, 9, 31, 0, 120, 1, 2], 100),
    ([0, 200, 0], 50),
    ([3, 0, 200], 50),
    ([60, 60], 60),
]


@pytest.mark.parametrize(("sizes", "most"), UNEVEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_bounded_products_have_the_bits_of_all_at_once_forward_and_backward(sizes, most, dtype):
    for one, other in zip(
        pass_of(sizes, most, dtype)[0], pass_of(sizes, sum(sizes), dtype)[0], strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("sizes", "most"), UNEVEN)
def test_inner_results_are_kept_of_no_more_rows_than_the_bound(sizes, most):
    _, of_a_row = pass_of([1], 1, torch.float32)
    assert of_a_row >= 3 * WIDE * 4
    for bound in (most, 0, sum(sizes)):
        _, kept = pass_of(sizes, bound, torch.float32)
        assert kept <= bound * of_a_row
    assert kept == bound * of_a_row  # where the bound is not passed, all are kept


@pytest.mark.slow
def test_the_peak_of_a_pass_is_that_of_the_bound_and_the_busiest_expert():
    sizes, most = [500] * 16, 1000
    of_a_row = 4 * WIDE * 4  # inner results, fp32
    # the chunks' results and weight gradients are joined at the end
    joined = (sum(sizes) + 3 * len(sizes) * WIDE) * WIDTH * 4
    at_once, bounded = (
        peak_bytes(lambda bound=bound: pass_of(sizes, bound, torch.float32))
        for bound in (sum(sizes), most)
    )
    # an expert's inner results are there with their gradients
    least = (sum(sizes) - most - 2 * max(sizes)) * of_a_row - joined
    assert at_once - bounded >= least > 0
