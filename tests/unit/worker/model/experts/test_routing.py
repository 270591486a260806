"""worker/model/experts/routing.py: logits alone choose, and each sample has a loss of its own."""

from __future__ import annotations

import pytest
import torch

from planner.model.experts import Routing
from worker.model.experts.routing import auxiliary_loss, route, with_loss


def logits(tokens=12, experts=6, seed=1):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed))


def test_of_equal_scores_the_lower_expert_is_chosen():
    for width in (4, 16, 64, 257):
        assert route(torch.zeros(3, width), Routing(), 3).chosen.tolist() == [[0, 1, 2]] * 3
    half = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0]])
    assert route(half, Routing(), 5).chosen.tolist() == [[1, 2, 4, 0, 5]]


def test_a_row_is_routed_as_in_any_batch():
    whole = route(logits(), Routing(), 3)
    for row in range(12):
        one = route(logits()[row : row + 1], Routing(), 3)
        assert torch.equal(one.chosen[0], whole.chosen[row])


def test_weights_are_the_scores_or_these_over_their_sum():
    plain = route(logits(), Routing(renormalise=False), 2)
    expected = logits().softmax(-1).sort(-1, descending=True).values[:, :2]
    assert torch.allclose(plain.weights, expected)
    assert plain.weights.sum(-1).max() < 1
    whole = route(logits(), Routing(), 2)
    assert torch.allclose(whole.weights.sum(-1), torch.ones(12))
    assert torch.allclose(whole.weights, expected / expected.sum(-1, keepdim=True))
    scaled = route(logits(), Routing(scale=2.5), 2)
    assert torch.allclose(scaled.weights, 2.5 * whole.weights)


def test_the_auxiliary_loss_of_two_samples_is_that_of_each():
    both = auxiliary_loss(route(logits(), Routing(), 2), 2)
    each = [auxiliary_loss(route(logits()[s], Routing(), 2), 1) for s in (slice(6), slice(6, 12))]
    assert both.item() == pytest.approx(sum(one.item() for one in each), rel=1e-6)


def test_the_auxiliary_loss_is_k_where_experts_are_equally_busy_and_more_elsewhere():
    even = 20.0 * torch.eye(4)[[0, 1, 2, 3]]
    assert auxiliary_loss(route(even, Routing(), 1), 1).item() == pytest.approx(1.0, abs=1e-6)
    uneven = 20.0 * torch.eye(4)[[0, 0, 0, 0]]
    assert auxiliary_loss(route(uneven, Routing(), 1), 1).item() == pytest.approx(4.0, abs=1e-4)


def test_a_loss_beside_a_tensor_counts_for_its_weight_whatever_comes_after():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (with_loss(x * 3, (x * x).sum(), 0.5) * 10).sum().backward()
    assert x.grad.tolist() == [30.0 + 0.5 * 2.0, 30.0 + 0.5 * 4.0]
