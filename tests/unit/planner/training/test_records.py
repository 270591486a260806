"""Recorded decisions: forced ones are marked, and parts of a batch stay whole."""

from __future__ import annotations

import numpy as np
import pytest

from planner.policy.environment import Episodes
from planner.training.records import Forcing, record
from planner.training.torch_network import as_network, initial_weights


@pytest.fixture
def recorded(curriculum):
    return record_of(curriculum)


def record_of(curriculum):
    environments = [curriculum.environment(one) for one in curriculum.training[:4]]
    episodes = Episodes(environments, 4)
    weights = initial_weights(curriculum.schema, 0).detach()
    network = as_network(weights, curriculum.schema, uses_film=True)
    depth = np.arange(16) % 2 == 0
    types = np.arange(16) % 4 == 0
    records = record(network, episodes, np.random.default_rng(0), Forcing(depth, types))
    return records, depth, types


def test_only_the_first_depth_of_a_forced_rollout_is_forced(recorded):
    records, depth, _ = recorded
    for row in range(16):
        depths = records.decisions[0]
        free = depths.free[depths.row == row]
        assert free[0] != depth[row]
        assert free[1:].all()


def test_all_node_classes_of_a_uniform_rollout_are_forced(recorded):
    records, _, types = recorded
    devices = records.decisions[1]
    assert (devices.free != types[devices.row]).all()


def test_every_choice_was_possible(recorded):
    records = recorded[0]
    for made in records.decisions:
        assert made.mask[np.arange(len(made.choice)), made.choice].all()


def test_a_part_of_the_rows_keeps_its_stages_with_their_templates(recorded):
    records = recorded[0]
    part = records.of_rows(4, 12)
    depths, devices, degrees = part.decisions
    assert set(depths.row) == set(range(4, 12))
    assert (depths.row[part.opened] == devices.row).all()
    assert (devices.row == degrees.row).all()
    depths, devices, _ = records.decisions
    assert (depths.row[records.opened] == devices.row).all()
