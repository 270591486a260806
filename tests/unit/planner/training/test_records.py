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
    network = as_network(initial_weights(curriculum.schema, 0), uses_film=True)
    depth = np.arange(16) % 2 == 0
    types = np.arange(16) % 4 == 0
    records = record(network, episodes, np.random.default_rng(0), Forcing(depth, types))
    return records, depth, types


def test_only_the_first_depth_of_a_forced_rollout_is_forced(recorded):
    records, depth, _ = recorded
    for row in range(16):
        free = records.depth_free[records.depth_row == row]
        assert free[0] == (0 if depth[row] else 1)
        assert (free[1:] == 1).all()


def test_all_node_classes_of_a_uniform_rollout_are_forced(recorded):
    records, _, types = recorded
    forced = records.device_free == 0
    assert (forced == types[records.stage_row]).all()


def test_every_choice_was_possible(recorded):
    records = recorded[0]
    assert records.depth_mask[np.arange(len(records.depth)), records.depth].all()
    assert records.device_mask[np.arange(len(records.device)), records.device].all()
    assert records.degree_mask[np.arange(len(records.degree)), records.degree].all()


def test_a_part_of_the_rows_keeps_its_stages_with_their_templates(recorded):
    records = recorded[0]
    part = records.of_rows(4, 12)
    assert set(part.depth_row) == set(range(4, 12))
    assert (part.depth_row[part.opened] == part.stage_row).all()
    whole = records.depth_row[records.opened] == records.stage_row
    assert whole.all()
