"""apis/model.py: the config.json of a model in a folder is known before anything starts."""

from __future__ import annotations

import json

import pytest

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.heddlejob import load_job, mistakes_of
from heddle_operator.apis.model import config_in, config_reference
from planner.model.catalogue import MODELS
from planner.model.config import model_of_config
from tests.refusals import refused
from worker.weights.hugging_face.config import config_of

CONFIG = config_of(MODELS["tiny-llama"])


def job(model, **spec):
    return {
        "apiVersion": "heddle.dev/v1alpha1",
        "kind": "HeddleJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "model": model,
            "data": {"builtin": "text"},
            "training": {"globalBatch": 4, "sequenceLength": 32},
            "steps": 3,
            **spec,
        },
    }


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "mine"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.mark.parametrize("init", [None, "Weights", "Seed"])
def test_a_folder_of_this_machine_is_read(folder, init):
    found = load_job(job({"path": str(folder), **({"init": init} if init else {})}))
    spec = found.training
    assert found.workload.model == spec.model_shape() == model_of_config(CONFIG, "mine")
    assert (spec.model, spec.config, spec.folder) == ("mine", CONFIG, str(folder))
    assert spec.weights == (None if init == "Seed" else str(folder))


def test_a_job_by_name_has_no_folder():
    spec = load_job(job({"name": "tiny-llama"})).training
    assert (spec.shape, spec.config, spec.folder, spec.weights) == (None, None, None, None)


def test_a_model_has_no_more_layers_than_anybody_has_trained():
    given = job({"path": "/volume/llama", "configRef": "llama"})
    assert load_job(given, CONFIG | {"num_hidden_layers": 1024}).workload.model.layers == 1024
    with refused(InvalidJob, "OutOfRange", "layers"):
        load_job(given, CONFIG | {"num_hidden_layers": 100_000})


def test_with_a_config_map_the_folder_is_not_looked_at():
    given = job({"path": "/volume/llama", "configRef": "llama"})
    found = load_job(given, CONFIG)
    assert found.training.folder == "/volume/llama"
    assert found.workload.model.name == "llama"
    assert found.with_data("/data").training.config == CONFIG


@pytest.mark.parametrize(
    ("model", "mistake"),
    [
        ({"path": "/none/there"}, ("Unreadable", None)),
        ({"name": "tiny-llama", "path": "/x"}, ("Contradiction", "spec.model")),
        ({"name": "tiny-llama", "init": "Seed"}, ("Contradiction", "spec.model")),
        ({"path": "/x", "init": "zeros"}, ("Unknown", "spec.model.init")),
        ({"path": "/x", "config": {}}, ("Unknown", "spec.model.config")),
    ],
)
def test_what_cannot_be_is_one_sentence(model, mistake):
    with refused(InvalidJob, *mistake):
        load_job(job(model))
    assert mistakes_of(job(model))


def test_code_is_known_by_what_a_config_map_says_of_it():
    row = {"name": "w", "shape": [4], "dim": None}
    own = {"entry_point": "mine:model", "embedding": [row], "block": [row], "head": [row]}
    shape = {**MODELS["tiny-llama"].to_json(), "name": "mine", "own": own}
    given = job({"entryPoint": "mine:model", "configRef": "mine"})
    found = load_job(given, {"model_type": "heddle", **shape})
    assert found.workload.model.own.entry_point == "mine:model"
    assert found.training.model_shape() == found.workload.model
    for other in (CONFIG, {"model_type": "heddle", **shape, "own": {**own, "entry_point": "a:b"}}):
        with refused(InvalidJob, "Mismatch"):
            load_job(given, other)


@pytest.mark.slow
def test_code_of_this_machine_is_asked(tmp_path):
    with refused(InvalidJob, "Failed"):
        load_job(job({"entryPoint": "none_such:model"}))


def test_a_folder_of_an_unknown_model_is_refused(folder):
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    with refused(InvalidJob, "Unknown", "model_type"):
        load_job(job({"path": str(folder)}))


def test_weights_are_never_written_over_those_that_were_read(folder):
    given = job({"path": str(folder)}, output={"path": f"{folder}/"})
    with refused(InvalidJob, "Taken", "spec.output.path"):
        load_job(given)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({}, "Missing"),
        ({"hunter2": "", "b": "hunter2"}, "Missing"),
        ({"config.json": "{hunter2"}, "Unreadable"),
        ({"config.json": "[" * 100_000}, "Unreadable"),
        ({"config.json": '["hunter2"]'}, "Malformed"),
    ],
)
def test_a_config_map_without_a_configuration_is_said(data, code):
    with refused(InvalidJob, code) as caught:
        config_in("llama", data)
    assert "ConfigMap llama" in str(caught.value)
    assert "hunter2" not in str(caught.value), "what a ConfigMap holds is quoted nowhere"


def test_the_configuration_is_that_key_or_the_only_one():
    assert config_in("x", {"config.json": '{"a": 1}', "other": ""}) == {"a": 1}
    assert config_in("x", {"llama.json": '{"a": 1}'}) == {"a": 1}


@pytest.mark.parametrize(
    "spec", [None, {}, {"model": 3}, {"model": {}}, {"model": {"configRef": 3}}]
)
def test_a_job_that_names_no_config_map_has_none(spec):
    assert config_reference({"spec": spec}) is None


@pytest.mark.parametrize("name", ["../../kube-system/secrets/x", "a?b", "a.b", "A"])
def test_what_can_be_no_config_map_is_refused_before_anybody_is_asked(name):
    with refused(InvalidJob, "Missing"):
        config_reference({"spec": {"model": {"configRef": name}}})


def test_the_config_map_is_that_of_the_model():
    assert config_reference({"spec": {"model": {"configRef": "llama"}}}) == "llama"


def test_a_name_of_a_hub_says_to_download_it_and_lists_what_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (by_path,) = mistakes_of(job({"path": "meta-llama/Llama-3.2-1B"}))
    assert "there is no such folder" in by_path.message
    (by_name,) = mistakes_of(job({"name": "Qwen/Qwen3-8B"}))
    for sentence in (by_path.message, by_name.message):
        assert "download it first and give its folder as spec.model.path" in sentence
    assert "llama3-8b" in by_name.message
    assert "deepseek-v3-like" in by_name.message
    (misspelt,) = mistakes_of(job({"name": "lama3-8b"}))
    assert "llama3-8b" in misspelt.message
    assert "download" not in misspelt.message
