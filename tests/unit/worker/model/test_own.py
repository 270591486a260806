"""model/own.py: an entry point gives a model, or one sentence."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InvalidWorkload
from planner.failure import Failure
from planner.model.config import OWN
from planner.model.own import OwnTensors
from tests.builders import MODEL
from tests.refusals import refused
from worker.model import own_config
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


def talks():
    print("loading")
    return own_model("mixer:model")


def leaves():
    sys.exit(3)


def test_what_an_entry_point_prints_is_no_part_of_the_answer(capsys):
    assert own_config.main([f"{__name__}:talks"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["model_type"] == OWN
    assert said.err == "loading\n"


def test_an_entry_point_that_ends_its_process_is_one_sentence(capsys):
    assert own_config.main([f"{__name__}:leaves"]) == 2
    failure = Failure.read(capsys.readouterr().err.encode(), 2)
    assert failure.code == "Failed"
    assert "ended its process (sys.exit(3))" in failure.message


def test_the_example_is_a_model_with_its_tensors():
    model = shape_of("mixer:model")
    assert [tensor.name for tensor in model.own.block] == ["norm", "into", "gate", "kernel", "back"]
    assert class_of(model, 1).__name__ == "Mixer"
    assert class_of(MODEL, MODEL.layers + 1) is Head


def test_code_of_another_model_is_refused():
    model = shape_of("mixer:model")
    with refused(InvalidWorkload, "Mismatch"):
        class_of(replace(model, layers=5), 1)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("not_a_model", "Malformed"),
        ("half_a_model", "Malformed"),
        ("fails", "Failed"),
        ("none", "Failed"),
    ],
)
def test_an_entry_point_that_gives_none_is_one_sentence(function, code):
    with refused(InvalidWorkload, code):
        own_model(f"{__name__}:{function}")


def test_an_entry_point_has_a_module_and_a_function():
    with refused(InvalidWorkload, "Malformed", "entry_point"):
        OwnTensors("mixer", (), (), ())


@pytest.mark.parametrize("entry_point", ["mixer", "mixer:", ":model", ""])
def test_an_entry_point_is_a_module_and_a_function(entry_point):
    with refused(InvalidWorkload, "Malformed", "entry_point"):
        own_model(entry_point)
