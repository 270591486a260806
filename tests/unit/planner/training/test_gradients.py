"""PCGrad: what is left never works against anybody."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.training.gradients import flat_gradient, without_conflicts


def test_gradients_that_agree_are_averaged():
    found = without_conflicts(
        [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0])], np.random.default_rng(0)
    )
    assert found.tolist() == [1.0, 1.0]


@given(st.integers(0, 1000))
def test_of_two_that_conflict_the_result_opposes_neither(seed):
    draws = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(5, generator=draws) for _ in range(2))
    found = without_conflicts([one, other], np.random.default_rng(seed))
    if torch.dot(one, other) >= 0:
        return
    assert torch.dot(found, one) >= -1e-5
    assert torch.dot(found, other) >= -1e-5


def test_one_gradient_alone_stays_as_it_is():
    found = without_conflicts([torch.tensor([3.0, -1.0])], np.random.default_rng(0))
    assert found.tolist() == [3.0, -1.0]


@pytest.mark.slow
def test_weights_that_play_no_part_have_gradient_zero():
    used = torch.tensor([2.0], requires_grad=True)
    unused = torch.tensor([5.0, 6.0], requires_grad=True)
    found = flat_gradient((used**2).sum(), [used, unused])
    assert found.tolist() == pytest.approx([4.0, 0.0, 0.0])
