"""The feature schema: its digest names all that weights depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.policy.schema import FeatureSchema
from planner.policy.weights import find_policy

SCHEMA = FeatureSchema(("a100-40", "h100"), (1, 2, 4), 24, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"types": ("h100", "a100-40")},
        {"tp_degrees": (1, 2)},
        {"d_max": 16},
        {"t_max": 4},
        {"sees_batch": False},
    ],
)
def test_another_schema_has_another_digest(change):
    assert replace(SCHEMA, **change).digest != SCHEMA.digest


def test_policies_of_before_keep_their_digest():
    assert find_policy("deepseek-v3-like").card.features == "fa0cb1c3e82a"


def test_equal_schemas_have_equal_digests():
    assert replace(SCHEMA).digest == SCHEMA.digest
