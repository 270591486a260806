"""planner/model/own.py: tensors of a model of the user's own, as plain data and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.errors import InvalidWorkload
from planner.model.config import model_of_config
from planner.model.own import OwnTensor, OwnTensors
from planner.model.shape import ModelShape
from planner.model.tensors import layer_numel, model_tensors
from tests.builders import MODEL
from tests.refusals import refused

OWN = OwnTensors(
    "mine:model",
    (OwnTensor("weight", (8, 4)),),
    (OwnTensor("norm", (4,)), OwnTensor("into", (12, 4), 0)),
    (OwnTensor("weight", (8, 4)),),
)
MINE = replace(MODEL, name="mine", layers=2, own=OWN)


def test_layers_have_the_tensors_that_their_kind_says():
    names = [tensor.name for tensor in model_tensors(MINE)]
    assert names == ["0.weight", "1.norm", "1.into", "2.norm", "2.into", "3.weight"]
    assert layer_numel(MINE, 1, 2) == 4 + 24


def test_tp_cuts_every_tensor_evenly_or_not_at_all():
    assert MINE.allows_tp(4)
    uneven = replace(OWN, block=(OwnTensor("into", (10, 4), 0),))
    assert not replace(MINE, own=uneven).allows_tp(4)


def test_a_model_is_read_back_from_json_and_from_its_configuration():
    row = json.loads(json.dumps(MINE.to_json()))
    assert ModelShape.from_json(row) == MINE
    assert model_of_config({"model_type": "heddle", **row}, "mine") == MINE


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"entry_point": "mine.py"}, ("Malformed", "entry_point")),
        ({"block": []}, ("Malformed", None)),
        ({"head": [{"name": "a b", "shape": [1], "dim": None}]}, ("Malformed", None)),
        ({"head": [{"name": "a", "shape": [0], "dim": None}]}, ("Malformed", None)),
        ({"head": [{"name": "a", "shape": [2], "dim": 1}]}, ("Malformed", None)),
        ({"head": [{"name": "a", "shape": 2, "dim": None}]}, ("Unreadable", None)),
        ({"more": 1}, ("Malformed", None)),
    ],
)
def test_a_mistake_is_one_sentence(change, mistake):
    with refused(InvalidWorkload, *mistake):
        OwnTensors.from_json({**MINE.to_json()["own"], **change})


def test_it_has_no_tied_head():
    with refused(InvalidWorkload, "Contradiction", "own"):
        replace(MINE, tied_head=True)
