"""The forward pass in numpy: the same as in torch, and conditioned by the composition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from planner.policy.environment import Constructions
from planner.policy.network import Network, shapes
from planner.policy.schema import FILL_HEADS
from planner.training.objective import judge
from planner.training.records import Forcing, record
from planner.training.torch_network import TorchNetwork
from tests.unit.planner.policy.conftest import GPUS, environment_on, untrained


@pytest.mark.slow
@pytest.mark.parametrize("learns_fill", [False, True])
def test_numpy_and_torch_give_the_same_probabilities(schema, learns_fill):
    schema = replace(schema, learns_fill=learns_fill)
    network = untrained(schema)
    gpus = (GPUS, "h100=1x8,a100-40=1x4")
    environments = [environment_on(text, schema) for text in gpus]
    constructions = Constructions(environments, 8)
    none = np.zeros(16, bool)
    records = record(network, constructions, np.random.default_rng(0), Forcing(none, none))
    weights = {name: torch.from_numpy(value) for name, value in network.weights.items()}
    summary = np.array([one.menu.summary for one in environments], np.float32)
    judged = judge(TorchNetwork(weights, uses_film=True), records, torch.from_numpy(summary), 8)
    for now, before in (
        (judged.depth, records.depth_old),
        (judged.device, records.device_old),
        (judged.degree, records.degree_old),
    ):
        assert np.allclose(now.numpy(), before, atol=2e-4)
    assert [one.head for one in records.fill] == (list(FILL_HEADS) if learns_fill else [])
    for now, one in zip(judged.fill, records.fill, strict=True):
        assert len(one.old)
        assert np.allclose(now.numpy(), one.old, atol=2e-4)


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


@pytest.mark.parametrize("learns_fill", [False, True])
def test_the_network_is_small_enough_to_come_with_its_profile(schema, learns_fill):
    sizes = shapes(replace(schema, learns_fill=learns_fill)).values()
    assert 4 * sum(int(np.prod(shape)) for shape in sizes) < 1_000_000
