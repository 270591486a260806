"""The torch twin: its numpy view follows its updates."""

from __future__ import annotations

import torch

from planner.policy.network import shapes
from planner.policy.schema import FeatureSchema
from planner.training.torch_network import as_network, initial_weights, named

SCHEMA = FeatureSchema(("h100",), (1, 2), 6, 4)


def test_weights_have_the_shapes_that_the_network_reads():
    weights = named(initial_weights(SCHEMA, 0), SCHEMA)
    found = {name: tuple(value.shape) for name, value in weights.items()}
    assert found == shapes(SCHEMA)


def test_equal_seeds_begin_alike_and_others_do_not():
    one, same, other = (initial_weights(SCHEMA, seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_numpy_network_follows_an_update():
    weights = initial_weights(SCHEMA, 0)
    network = as_network(weights.detach(), SCHEMA, uses_film=True)
    with torch.no_grad():
        named(weights, SCHEMA)["depth.bias"] += 1
    assert (network.weights["depth.bias"] == 1).all()
