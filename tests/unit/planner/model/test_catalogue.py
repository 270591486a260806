"""Named models have the published sizes, and any other comes from its config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import InvalidWorkload
from planner.model.catalogue import MODELS, find_model
from planner.model.tensors import expert_numel, layer_numel, model_numel
from tests.refusals import refused

# Parameters, of the whole and of the last block, in 1e9 and 1e6.
PUBLISHED = {
    "llama3-8b": (8.030, 218.1),
    "qwen3-32b": (32.76, 487.6),
    "qwen3-64b": (63.97, 487.6),
    "gpt-neo-2.7b": (2.65, 78.65),
    "mixtral-8x7b": (46.70, 1451),
    "qwen3-30b-a3b": (30.53, 623),
    "deepseek-v3-like": (671.0, 11510),
}
LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_named_model_has_the_published_parameters(name):
    whole, block = PUBLISHED[name]
    model = find_model(name)
    assert model_numel(model) / 1e9 == pytest.approx(whole, rel=2e-3)
    assert layer_numel(model, model.layers) / 1e6 == pytest.approx(block, rel=2e-3)


def test_experts_hold_what_the_paper_says():
    assert expert_numel(find_model("deepseek-v3-like")) * 16 == 168 * 2**30
    assert expert_numel(find_model("llama3-8b")) == 0


def test_an_unknown_name_lists_those_there_are():
    with refused(InvalidWorkload, "Unknown"):
        find_model("gpt-9")
    assert next(iter(MODELS)) == "tiny-llama"


def config(tmp_path, **changes):
    folder = tmp_path / "some-llama"
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA3_8B, **changes}))
    return str(path)


def test_a_configuration_gives_the_same_shape_as_its_name(tmp_path):
    path = config(tmp_path)
    model = find_model(path)
    assert model.name == "some-llama"
    assert find_model(str(Path(path).parent)) == model
    assert model_numel(model) == model_numel(find_model("llama3-8b"))


@pytest.mark.parametrize(
    ("kind", "more", "parameters"),
    [
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}, 46.70),
        (
            "gpt2",
            {"n_embd": 768, "hidden_size": None, "n_layer": 12, "n_head": 12}
            | {"num_hidden_layers": None, "num_attention_heads": None, "vocab_size": 50257}
            | {"intermediate_size": None, "n_positions": 1024},
            0.1244,
        ),
        (
            "qwen3",
            {"head_dim": 128, "hidden_size": 5120, "intermediate_size": 25600}
            | {"num_attention_heads": 64, "num_hidden_layers": 64, "vocab_size": 151936},
            32.76,
        ),
    ],
)
def test_configurations_of_other_architectures_are_read(tmp_path, kind, more, parameters):
    model = find_model(config(tmp_path, model_type=kind, **more))
    assert model_numel(model) / 1e9 == pytest.approx(parameters, rel=2e-3)


def test_deepseek_is_read_from_its_configuration(tmp_path):
    path = config(
        tmp_path,
        model_type="deepseek_v3",
        hidden_size=7168,
        num_hidden_layers=61,
        num_attention_heads=128,
        num_key_value_heads=128,
        intermediate_size=18432,
        vocab_size=129280,
        n_routed_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        n_shared_experts=1,
        first_k_dense_replace=3,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    )
    assert model_numel(find_model(path)) == model_numel(find_model("deepseek-v3-like"))


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        ({"model_type": "mamba"}, ("Unknown", "model_type")),
        ({"hidden_size": None}, ("Missing", "hidden_size")),
        ({"vocab_size": "many"}, ("Malformed", "vocab_size")),
        ({"vocab_size": 10**30}, ("Malformed", "vocab_size")),
        ({"num_key_value_heads": 7}, ("OutOfRange", "heads")),
    ],
)
def test_a_wrong_configuration_is_one_sentence(tmp_path, changes, mistake):
    with refused(InvalidWorkload, *mistake):
        find_model(config(tmp_path, **changes))


@pytest.mark.parametrize(("text", "code"), [("{", "Unreadable"), ("[]", "Malformed")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, code):
    path = tmp_path / "config.json"
    path.write_text(text)
    with refused(InvalidWorkload, code):
        find_model(str(path))
    with refused(InvalidWorkload, "Unreadable"):
        find_model(str(tmp_path / "missing.json"))
