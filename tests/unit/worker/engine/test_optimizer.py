"""worker/engine/optimizer.py: the update of Adam, to the bit, whatever cut the tensors are in."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.contract import TrainingSpec
from worker.engine.optimizer import update_

SPEC = TrainingSpec(
    model="small",
    data="text",
    global_batch=4,
    sequence_length=8,
    steps=10,
    betas=(0.8, 0.97),
    epsilon=1e-6,
)
SHAPES = ((16, 16), (64, 16), (16,), (33, 7))
STEPS = 5


def numbers(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fresh():
    """Weights with moments of zero."""
    weights = [numbers(shape, index) for index, shape in enumerate(SHAPES)]
    return [(weight, torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]


def gradients_of(step):
    return [numbers(shape, 100 * (step + 1) + index) for index, shape in enumerate(SHAPES)]


def rate_of(step):
    return 1e-3 * (step + 1)


@pytest.mark.slow  # torch's optimizer imports the compiler stack
@pytest.mark.parametrize("foreach", [False, True])
def test_several_steps_are_those_of_torchs_adam(foreach):
    shards = fresh()
    adam = torch.optim.Adam(
        [torch.nn.Parameter(weight.clone()) for weight, *_ in shards],
        betas=SPEC.betas,
        eps=SPEC.epsilon,
        foreach=foreach,
    )
    (group,) = adam.param_groups
    for step in range(STEPS):
        gradients = gradients_of(step)
        update_(shards, gradients, SPEC, rate_of(step), step)
        group["lr"] = rate_of(step)
        for parameter, gradient in zip(group["params"], gradients_of(step), strict=True):
            parameter.grad = gradient
        adam.step()
        for (weight, mean, square), parameter in zip(shards, group["params"], strict=True):
            state = adam.state[parameter]
            assert torch.equal(weight, parameter)
            assert torch.equal(mean, state["exp_avg"])
            assert torch.equal(square, state["exp_avg_sq"])


@given(st.data())
def test_a_tensor_has_the_bits_of_its_rows_updated_on_their_own(data):
    """So that a rank with another cut, or a whole copy, never drifts apart."""
    whole, pieces = fresh(), fresh()
    cuts = [
        sorted({0, rows, *data.draw(st.lists(st.integers(1, rows), max_size=3))})
        for rows, *_ in SHAPES
    ]

    def cut(tensors):
        return [
            tensor[start:stop]
            for tensor, points in zip(tensors, cuts, strict=True)
            for start, stop in pairwise(points)
        ]

    rows = list(zip(*(cut(part) for part in zip(*pieces, strict=True)), strict=True))
    for step in range(STEPS):
        update_(whole, gradients_of(step), SPEC, rate_of(step), step)
        update_(rows, cut(gradients_of(step)), SPEC, rate_of(step), step)
    for one, other in zip(whole, pieces, strict=True):
        assert all(map(torch.equal, one, other))


def test_columns_that_are_not_contiguous_have_the_same_bits():
    """Half of the columns of a tensor, as a row-parallel shard is a view of."""
    whole, halves = fresh()[0], fresh()[0]
    (gradient, *_) = gradients_of(0)
    update_([whole], [gradient.clone()], SPEC, 1e-3, 0)
    for columns in (slice(0, 8), slice(8, 16)):
        parts = tuple(part[:, columns] for part in halves)
        update_([parts], [gradient[:, columns]], SPEC, 1e-3, 0)
    assert all(map(torch.equal, whole, halves))


def test_it_counts_updates_and_not_steps():
    """The bias correction of the first update moves each weight by the rate, at whatever step."""
    shards = fresh()
    before = [weight.clone() for weight, *_ in shards]
    update_(shards, gradients_of(0), SPEC, 1e-3, 0)
    for (weight, *_), was in zip(shards, before, strict=True):
        assert (weight - was).abs().max() <= 1.001e-3
    later = fresh()
    update_(later, gradients_of(0), SPEC, 1e-3, 9)
    assert not torch.equal(later[0][0], shards[0][0])


def test_it_leaves_the_gradients_and_the_storages_as_they_are():
    shards, gradients = fresh(), gradients_of(0)
    places = [part.data_ptr() for parts in shards for part in parts]
    update_(shards, gradients, SPEC, 1e-3, 0)
    assert [part.data_ptr() for parts in shards for part in parts] == places
    assert all(map(torch.equal, gradients, gradients_of(0)))
