"""How a model computes its numbers, as plain data and back."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from planner.errors import InvalidWorkload
from planner.model.arithmetic import PLAIN, Arithmetic, Rotary, RotaryScaling
from planner.model.catalogue import MODELS
from planner.model.shape import ModelShape
from tests.refusals import refused


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shape_is_read_back_from_json_with_its_arithmetic(name):
    assert ModelShape.from_json(json.loads(json.dumps(MODELS[name].to_json()))) == MODELS[name]


def test_a_shape_without_arithmetic_is_a_plain_llama():
    row = MODELS["tiny-llama"].to_json()
    del row["arithmetic"]
    assert ModelShape.from_json(row).arithmetic == PLAIN


def test_scaling_is_read_back():
    scaling = RotaryScaling(kind="yarn", factor=8.0, magnitude=0.7)
    stretched = Arithmetic(rotary=Rotary(5e5, scaling), lacking=("x",))
    assert Arithmetic.from_json(json.loads(json.dumps(asdict(stretched)))) == stretched


def test_windows_come_in_turn():
    assert [Arithmetic(windows=(0, 256)).window(block) for block in (1, 2, 3)] == [0, 256, 0]


@pytest.mark.parametrize(
    ("row", "mistake"),
    [
        ({"activation": "tanh"}, ("Malformed", "activation")),
        ({"windows": []}, ("Malformed", "windows")),
        ({"rotary": {"base": -1}}, ("Malformed", "base")),
        ({"rotary": 3}, ("Malformed", None)),
        ({"rotary": {"scaling": {"kind": "dynamic", "factor": 2}}}, ("Malformed", "kind")),
        ({"epsilon": 1}, ("Unknown", "epsilon")),
        ({"attention_dropout": 1.0}, ("Malformed", "attention_dropout")),
    ],
)
def test_a_wrong_value_is_one_sentence(row, mistake):
    with refused(InvalidWorkload, *mistake):
        Arithmetic.from_json(row)
