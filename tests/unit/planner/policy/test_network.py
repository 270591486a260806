"""The forward pass in numpy: the same as in torch, and conditioned by the composition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from planner.policy.environment import Constructions
from planner.policy.network import Network, shapes
from planner.training.objective import judge
from planner.training.records import Forcing, record
from planner.training.torch_network import TorchNetwork
from tests.unit.planner.policy.conftest import environment_on, untrained


@pytest.mark.slow
def test_numpy_and_torch_give_the_same_probabilities(environment, schema, network):
    other = environment_on("h100=1x8,a100-40=1x4", schema)
    constructions = Constructions([environment, other], 8)
    none = np.zeros(16, bool)
    records = record(network, constructions, np.random.default_rng(0), Forcing(none, none))
    weights = {name: torch.from_numpy(value) for name, value in network.weights.items()}
    summary = np.array([one.menu.summary for one in (environment, other)], np.float32)
    judged = judge(TorchNetwork(weights, uses_film=True), records, torch.from_numpy(summary), 8)
    for now, before in (
        (judged.depth, records.depth_old),
        (judged.device, records.device_old),
        (judged.degree, records.degree_old),
    ):
        assert np.allclose(now.numpy(), before, atol=2e-4)


def test_the_composition_conditions_every_layer(schema, network):
    summaries = np.random.default_rng(1).random((2, schema.widths["summary"])).astype(np.float32)
    film = network.film(summaries)
    for scale, shift in film.of.values():
        assert not np.allclose(scale[0], scale[1])
        assert not np.allclose(shift[0], shift[1])


def test_without_film_the_composition_is_not_read(schema):
    network = Network(untrained(schema).weights, uses_film=False)
    summaries = np.random.default_rng(1).random((2, schema.widths["summary"])).astype(np.float32)
    for scale, shift in network.film(summaries).of.values():
        assert (scale == 1).all()
        assert (shift == 0).all()


def test_the_network_is_small_enough_to_come_with_its_profile(schema):
    assert 4 * sum(int(np.prod(shape)) for shape in shapes(schema).values()) < 1_000_000
