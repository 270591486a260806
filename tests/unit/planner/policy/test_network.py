"""The forward pass in numpy: the same as in torch, and conditioned by the composition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from planner.policy.environment import Episodes
from planner.policy.network import MOST_MULTIPLIED, Network, product, shapes
from planner.training.objective import judge
from planner.training.records import Forcing, record
from planner.training.torch_network import TorchNetwork
from tests.unit.planner.policy.conftest import GPUS, environment_on, untrained


@pytest.mark.slow
def test_numpy_and_torch_give_the_same_probabilities(schema):
    network = untrained(schema)
    gpus = (GPUS, "h100=1x8,a100-40=1x4")
    environments = [environment_on(text, schema) for text in gpus]
    episodes = Episodes(environments, 8)
    none = np.zeros(16, bool)
    records = record(network, episodes, np.random.default_rng(0), Forcing(none, none))
    weights = {name: torch.from_numpy(value) for name, value in network.weights.items()}
    summary = np.array([one.space.summary for one in environments], np.float32)
    judged = judge(TorchNetwork(weights), records, torch.from_numpy(summary), 8)
    for now, made in zip(judged.logs, records.decisions, strict=True):
        assert np.allclose(now.numpy(), made.old, atol=2e-4)


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
    sizes = shapes(schema).values()
    assert 4 * sum(int(np.prod(shape)) for shape in sizes) < 1_000_000


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 128, 1000])
@pytest.mark.parametrize("shape", [(128, 128), (30, 64), (600, 600)])
def test_a_product_of_a_few_rows_at_a_time_is_the_product(rows, shape):
    draws = np.random.default_rng(rows)
    left = draws.standard_normal((rows, shape[0])).astype(np.float32)
    right = draws.standard_normal(shape).astype(np.float32)
    found = product(left, right)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, left @ right, rtol=1e-4, atol=1e-4)


def test_rows_that_are_left_to_one_thread_are_a_whole_number_of_them():
    assert MOST_MULTIPLIED // (128 * 128) == 16
