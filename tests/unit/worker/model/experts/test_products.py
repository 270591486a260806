"""worker/model/experts/products.py: together or one by one, the bits are the same."""

from __future__ import annotations

import pytest
import torch

from worker.model.experts.products import grouped, is_grouped, looped


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
