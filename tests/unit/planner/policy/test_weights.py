"""Files of a policy: whole and belonging together, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import InvalidPolicy, NoPolicy
from planner.policy.network import shapes
from planner.policy.schema import FeatureSchema
from planner.policy.weights import (
    WEIGHTS,
    digest_of,
    find_policy,
    load_policy,
    policy_folder,
    weights_content,
    write_policy,
)
from tests.refusals import refused
from tests.unit.planner.policy.conftest import untrained
from tests.unit.planner.policy.test_card import CARD as SOME_CARD

SCHEMA = FeatureSchema(SOME_CARD.types, SOME_CARD.tp_degrees, SOME_CARD.d_max, SOME_CARD.t_max)


@pytest.fixture
def folder(tmp_path):
    content = weights_content(untrained(SCHEMA).weights)
    card = replace(SOME_CARD, features=SCHEMA.digest, weights=digest_of(content))
    write_policy(tmp_path, card, content)
    return tmp_path


def test_a_policy_survives_its_files(folder):
    policy = load_policy(folder)
    assert {name: array.shape for name, array in policy.network.weights.items()} == shapes(SCHEMA)
    for name, array in untrained(SCHEMA).weights.items():
        assert np.array_equal(policy.network.weights[name], array)


@pytest.mark.parametrize("kept", [0, 7, 1000, -1])
def test_weights_that_are_cut_short_are_refused(folder, kept):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:kept])
    with refused(InvalidPolicy, "Damaged"):
        load_policy(folder)


def test_weights_of_another_shape_are_refused(folder):
    weights = dict(untrained(SCHEMA).weights)
    weights["depth.score"] = weights["depth.score"][:-1]
    content = weights_content(weights)
    card = replace(load_policy(folder).card, weights=digest_of(content))
    write_policy(folder, card, content)
    with refused(InvalidPolicy, "Damaged"):
        load_policy(folder)


def test_other_features_are_refused(folder):
    card = replace(load_policy(folder).card, features="0123456789ab")
    write_policy(folder, card, (folder / WEIGHTS).read_bytes())
    with refused(InvalidPolicy, "Damaged"):
        load_policy(folder)


def test_no_folder_is_no_policy(tmp_path):
    with refused(NoPolicy, "Missing", "policy"):
        find_policy("mine")
    with refused(NoPolicy, "Missing"):
        find_policy("mine", tmp_path / "none")


def test_a_policy_that_was_trained_again_is_read_again(folder):
    before = find_policy("mine", folder)
    assert find_policy("mine", folder) is before
    content = weights_content(untrained(SCHEMA, seed=1).weights)
    write_policy(folder, replace(before.card, weights=digest_of(content)), content)
    assert find_policy("mine", folder).card.weights == digest_of(content)


def test_the_doubled_model_is_planned_by_the_policy_of_the_single_one():
    assert policy_folder("qwen3-64b") == policy_folder("qwen3-32b")
    assert policy_folder("llama3-8b") != policy_folder("qwen3-32b")
