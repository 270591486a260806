"""The state and the space of a composition: fractions, not counts."""

from __future__ import annotations

import numpy as np

from planner.policy.schema import OF_TYPE, FeatureSchema
from tests.unit.planner.policy.conftest import environment_on


def test_twice_the_cluster_changes_nothing_but_its_scale(schema):
    small = environment_on("h100=2x4,a100-40=4x4", schema, batch=256).space
    large = environment_on("h100=4x4,a100-40=8x4", schema, batch=512).space
    differ = np.flatnonzero(~np.isclose(small.state, large.state))
    width = OF_TYPE + 4 * len(schema.tp_degrees)
    assert differ.tolist() == [len(schema.types) * width]  # log G
    assert np.allclose(small.option, large.option)


def test_a_type_that_is_absent_has_no_features(schema):
    state = environment_on("h100=2x4", schema).space.state
    width = OF_TYPE + 4 * len(schema.tp_degrees)
    assert not state[:width].any()
    assert state[width : 2 * width].any()


def test_every_gpu_is_on_the_menu(environment):
    assert environment.space.gpus == 15
    assert environment.space.type_gpus.tolist() == [7, 8]
    assert environment.space.room.max() == 8


def test_a_policy_that_is_blind_to_the_batch_has_no_feature_of_gradient_sums():
    seen, blind = (
        environment_on("h100=2x4", FeatureSchema(("h100",), (1, 2, 4, 8), 24, 8, sees)).space
        for sees in (True, False)
    )
    assert seen.state[5] != 0
    assert blind.state[5] == 0
