"""How a model computes its numbers, as plain data and back."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from planner.errors import InvalidWorkload
from planner.model.arithmetic import PLAIN, Arithmetic, Rotary, RotaryScaling
from planner.model.catalogue import MODELS
from planner.model.shape import ModelShape


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shape_is_read_back_from_json_with_its_arithmetic(name):
    assert ModelShape.from_json(json.loads(json.dumps(MODELS[name].to_json()))) == MODELS[name]


def test_a_shape_without_arithmetic_is_a_plain_llama():
    row = MODELS["tiny-llama"].to_json()
    del row["arithmetic"]
    assert ModelShape.from_json(row).arithmetic == PLAIN


def test_scaling_is_read_back():
    stretched = Arithmetic(rotary=Rotary(5e5, RotaryScaling("llama3", 8.0)), lacking=("x",))
    assert Arithmetic.from_json(json.loads(json.dumps(asdict(stretched)))) == stretched


def test_windows_come_in_turn():
    assert [Arithmetic(windows=(0, 256)).window(block) for block in (1, 2, 3)] == [0, 256, 0]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"activation": "tanh"}, "arithmetic.activation is 'tanh'; it must be one of silu, gelu"),
        ({"windows": []}, r"arithmetic.windows is \(\); it must be a list of whole numbers"),
        ({"rotary": {"base": -1}}, "arithmetic.rotary.base is -1; it must be a number"),
        ({"rotary": 3}, "arithmetic.rotary is 3; it must be a JSON object"),
        ({"rotary": {"scaling": {"kind": "yarn"}}}, "scaling.kind is 'yarn'; it must be one of"),
        ({"epsilon": 1}, "has the unknown key 'epsilon'"),
        ({"attention_dropout": 1.0}, "it must be a number from 0 to 0.99"),
    ],
)
def test_a_wrong_value_is_one_sentence(row, sentence):
    with pytest.raises(InvalidWorkload, match=sentence):
        Arithmetic.from_json(row)
