"""worker/model/experts/routing.py: logits alone choose, and each sample has a loss of its own."""

from __future__ import annotations

import pytest
import torch

from planner.model.experts import Routing
from worker.model.experts.routing import auxiliary_loss, route, with_loss, with_visits


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


SIGMOID = Routing(score="sigmoid", bias=True)


def test_a_bias_counts_for_the_choice_and_not_for_the_weights():
    bias = torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0, 9.0])
    found = route(logits(), SIGMOID, 2, bias)
    assert found.chosen.tolist() == [[5, 2]] * 12
    own = logits().sigmoid()[:, [5, 2]]
    assert torch.allclose(found.weights, own / own.sum(-1, keepdim=True))
    assert torch.allclose(found.scores.sum(-1), torch.ones(12))


def test_with_a_bias_the_auxiliary_loss_counts_the_best_scores_and_not_the_visits():
    bias = torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0, 9.0])
    pushed, free = route(logits(), SIGMOID, 2, bias), route(logits(), SIGMOID, 2, torch.zeros(6))
    assert not torch.equal(pushed.chosen, free.chosen)
    wanted = auxiliary_loss(free, 3)
    assert auxiliary_loss(pushed, 3, has_bias=True).item() == wanted.item()
    assert auxiliary_loss(pushed, 3).item() != wanted.item()


def test_scores_of_zero_have_weights_of_zero():
    found = route(torch.full((2, 6), -500.0), SIGMOID, 2, torch.zeros(6))
    assert found.weights.tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize(
    ("score", "chosen"),
    [("best", [0, 1]), ("two", [3, 4])],  # groups of three: 0.9 with two zeros, 0.6 with 0.5
)
def test_a_group_is_worth_its_best_expert_or_its_two_best(score, chosen):
    shares = torch.tensor([[0.9, 0.05, 0.01, 0.6, 0.5, 0.02]])
    routing = Routing(
        score="sigmoid", renormalise=False, groups=2, groups_kept=1, group_score=score
    )
    found = route(torch.logit(shares), routing, 2)
    assert found.chosen.tolist() == [chosen]
    assert torch.allclose(found.weights, shares[:, chosen])


def test_of_equal_groups_the_first_is_kept():
    routing = Routing(groups=3, groups_kept=2)
    assert route(torch.zeros(2, 6), routing, 4).chosen.tolist() == [[0, 1, 2, 3]] * 2


def test_the_backward_pass_gives_a_bias_the_visits_of_its_experts():
    weights = torch.rand(4, 2, requires_grad=True)
    chosen = torch.tensor([[0, 2], [2, 1], [2, 0], [2, 1]])
    bias = torch.zeros(5, requires_grad=True)
    for _ in range(2):  # micro-batches
        (with_visits(weights, chosen, bias) * 3e5).sum().backward()  # scaled as in fp16
    assert bias.grad.tolist() == [4.0, 4.0, 8.0, 0.0, 0.0]
    assert weights.grad.tolist() == [[6e5, 6e5]] * 4
