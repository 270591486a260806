"""hugging_face/config.py: what is written is the model that it came from."""

from __future__ import annotations

import dataclasses
import json

import pytest

from planner.errors import InvalidWorkload
from planner.model.arithmetic import Rotary, RotaryScaling
from planner.model.catalogue import MODELS
from planner.model.config import model_of_config, read_config
from planner.model.shape import LatentAttention, ModelShape
from tests.unit.worker.weights.hugging_face.golden import KINDS, golden, model_of
from worker.weights.hugging_face.config import config_of, difference, digest, final_config

SMALL = ModelShape(name="small", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=200)
STRETCHED = dataclasses.replace(
    SMALL.arithmetic,
    rotary=Rotary(5e5, RotaryScaling(kind="llama3", factor=8.0, original_positions=4096)),
)
TRAINED = [*MODELS]
DESCRIBED = [kind for kind in KINDS if kind not in ("gpt2", "mistral", "opt")]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_model_in_a_folder_all_keys_stay_and_precision_and_architecture_are_said(kind):
    config = golden(kind)["config"]
    assert final_config(config, "float32") == config
    older = {**config, "torch_dtype": "float16", "_name_or_path": "x/y", "architectures": ["X"]}
    del older["dtype"]
    assert final_config(older, "bfloat16") == {**config, "dtype": "bfloat16"}


@pytest.mark.parametrize("kind", DESCRIBED)
def test_a_described_model_has_the_keys_that_save_pretrained_writes(tmp_path, kind):
    model = model_of(kind, tmp_path)
    described = config_of(model)
    assert described is not None
    found = final_config(described, "float32")
    assert set(found) | {"transformers_version"} == set(golden(kind)["config"])


@pytest.mark.parametrize("kind", DESCRIBED)
def test_a_described_model_is_that_model(tmp_path, kind):
    model = model_of(kind, tmp_path)
    assert model_of_config(config_of(model) or {}, model.name) == model


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_of_the_catalogue_computes_the_same_by_its_description(name):
    model = MODELS[name]
    found = model_of_config(config_of(model) or {}, name)
    same = dataclasses.replace(
        found, head_width=model.head_width, scores=model.scores, recompute=model.recompute
    )
    assert same == model
    assert found.head_dim == model.head_dim


def test_stretched_positions_are_described():
    model = dataclasses.replace(SMALL, arithmetic=STRETCHED, head_width=8)
    assert model_of_config(config_of(model) or {}, "small") == model


def test_a_model_that_no_family_has_is_not_described():
    assert config_of(dataclasses.replace(SMALL, latent=LatentAttention(0, 16, 4, 8))) is None


def test_a_digest_is_of_what_a_configuration_says_of_the_model():
    config = golden("llama")["config"]
    same = {**dict(reversed(config.items())), "transformers_version": "1", "dtype": "x"}
    assert digest(config) == digest(same)
    assert digest(config) != digest({**config, "rms_norm_eps": 1e-5})


def test_a_key_that_only_one_has_is_a_difference(tmp_path):
    config = golden("llama")["config"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "new_key": 1}))
    assert "and new_key None, that of" in str(difference(config, tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_config_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidWorkload):
        read_config(tmp_path)
