"""model/own.py: an entry point gives a model, or one sentence."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InvalidWorkload
from planner.model.own import OwnTensors
from tests.builders import MODEL
from worker.model.model import Head
from worker.model.own import OwnModel, class_of, own_model, shape_of

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "own_model"


@pytest.fixture(autouse=True)
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    own_model.cache_clear()
    sys.modules.pop("mixer", None)


def not_a_model():
    return 3


def half_a_model():
    return OwnModel(MODEL, {"block": Head}, {}, lambda _: None)


def fails():
    raise OSError("no disk")


def test_the_example_is_a_model_with_its_tensors():
    model = shape_of("mixer:model")
    assert [tensor.name for tensor in model.own.block] == ["norm", "into", "gate", "kernel", "back"]
    assert class_of(model, 1).__name__ == "Mixer"
    assert class_of(MODEL, MODEL.layers + 1) is Head


def test_code_of_another_model_is_refused():
    model = shape_of("mixer:model")
    with pytest.raises(InvalidWorkload, match="gives another model here than the job says"):
        class_of(replace(model, layers=5), 1)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("not_a_model", "must return a worker.model.own.OwnModel .*, found int"),
        ("half_a_model", "with layers and tensors of embedding, block, head"),
        ("fails", "failed with OSError: no disk"),
        ("none", "failed with AttributeError"),
    ],
)
def test_an_entry_point_that_gives_none_is_one_sentence(function, sentence):
    with pytest.raises(InvalidWorkload, match=sentence) as caught:
        own_model(f"{__name__}:{function}")
    assert "\n" not in str(caught.value)


def test_an_entry_point_has_a_module_and_a_function():
    with pytest.raises(InvalidWorkload, match="must be module:function"):
        OwnTensors("mixer", (), (), ())


@pytest.mark.parametrize("entry_point", ["mixer", "mixer:", ":model", ""])
def test_an_entry_point_is_a_module_and_a_function(entry_point):
    with pytest.raises(InvalidWorkload, match=r"is not module:function; write for example"):
        own_model(entry_point)
