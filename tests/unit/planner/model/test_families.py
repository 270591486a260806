"""What the families of models ask for in their configurations, and what the worker lacks of it."""

from __future__ import annotations

import pytest

from planner.errors import InvalidWorkload
from planner.model.arithmetic import Rotary, RotaryScaling
from planner.model.config import model_of_config
from planner.model.families import shortest_cycle
from tests.refusals import refused

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 250,
    "architectures": ["LlamaForCausalLM"],
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
}
GPT_NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 64,
    "num_heads": 4,
    "num_layers": 4,
    "vocab_size": 250,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 256,
}
OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 250,
    "max_position_embeddings": 100,
}


def model(config, **changes):
    return model_of_config({**config, **changes}, "mine")


def test_rotary_positions_are_read_under_the_names_of_both_versions():
    stretched = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = model(LLAMA, rope_theta=5e5, rope_scaling=stretched)
    new = model(LLAMA, rope_parameters={**stretched, "rope_theta": 5e5})
    assert old == new
    assert old.arithmetic.rotary == Rotary(
        5e5, RotaryScaling(kind="llama3", factor=8.0, original_positions=64)
    )
    assert not old.arithmetic.lacking
    linear = model(LLAMA, rope_scaling={"type": "linear", "factor": 2.0})
    assert linear.arithmetic.rotary == Rotary(10000.0, RotaryScaling(kind="linear", factor=2.0))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rotary scaling 'dynamic'"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "yarn without original_max_position_embeddings",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rotary scaling 'dynamic'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary positions"),
        ({"partial_rotary_factor": 0.5}, "the key 'partial_rotary_factor' (0.5)"),
        ({"pretraining_tp": 2}, "the key 'pretraining_tp' (2)"),
        ({"final_logit_softcapping": 30.0}, "the key 'final_logit_softcapping' (30.0)"),
        ({"quantization_config": {"bits": 4}}, "the key 'quantization_config' ({'bits': 4})"),
        ({"embedding_multiplier": 12.0}, "the key 'embedding_multiplier' (12.0)"),
        ({"hidden_act": "xielu"}, "the activation 'xielu'"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types ['linear_attention'"),
        ({"rope_parameters": {"a": {"rope_theta": 1.0}}}, "that differ from block to block"),
    ],
)
def test_what_a_configuration_asks_for_and_the_worker_lacks_is_named(changes, named):
    assert named in ", ".join(model(LLAMA, **changes).arithmetic.lacking)


def test_what_changes_no_number_is_not_named():
    assert not model(LLAMA, pretraining_tp=1, partial_rotary_factor=1.0).arithmetic.lacking
    assert not model(LLAMA, rope_scaling=None, temperature=0.7).arithmetic.lacking


def test_biases_of_llama_are_asked_for():
    biased = model(LLAMA, attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.o_bias, biased.ffn_bias, biased.bias) == (True,) * 3 + (False,)


@pytest.mark.parametrize(("token", "row"), [(None, None), (0, 0), (7, 7), (-1, 249)])
def test_the_padding_token_is_that_of_transformers_embedding(token, row):
    for config in (LLAMA, OPT):
        assert model(config, pad_token_id=token).arithmetic.padding_token == row
    assert model(GPT_NEO, pad_token_id=token).arithmetic.padding_token is None  # knows none


def test_the_padding_token_of_opt_is_the_second_unless_it_is_said():
    assert model(OPT).arithmetic.padding_token == 1
    assert model(LLAMA).arithmetic.padding_token is None


@pytest.mark.parametrize("token", [250, -251])
def test_a_padding_token_beyond_the_vocabulary_is_named(token):
    (lacking,) = model(LLAMA, pad_token_id=token).arithmetic.lacking
    assert lacking == f"the key 'pad_token_id' ({token}) of a vocabulary of 250"


@pytest.mark.parametrize(
    ("family", "kv_heads", "head_dim"),
    [("llama", 32, 2), ("mistral", 8, 2), ("qwen2", 32, 2), ("qwen3", 32, 128)],
)
def test_an_absent_key_has_the_value_of_the_familys_class(family, kv_heads, head_dim):
    """As `transformers` has it; null is as many heads as there are."""
    asked = {**LLAMA, "model_type": family, "num_attention_heads": 32}
    found = model(asked)
    assert (found.kv_heads, found.head_dim) == (kv_heads, head_dim)
    stated = model(asked, num_key_value_heads=None, head_dim=None)
    assert (stated.kv_heads, stated.head_dim) == (32, 2)


@pytest.mark.parametrize(("config", "key"), [(LLAMA, "initializer_range"), (OPT, "init_std")])
def test_the_first_weights_have_the_deviation_that_is_asked_for(config, key):
    asked = {name: value for name, value in config.items() if name != "initializer_range"}
    assert model(asked).arithmetic.initial_deviation == 0.02
    assert model(asked, **{key: 0.006}).arithmetic.initial_deviation == 0.006


def test_numbers_that_cannot_be_rotated_are_refused():
    with refused(InvalidWorkload, "OutOfRange", "head_width"):
        model(LLAMA, head_dim=5)


@pytest.mark.parametrize(
    "changes",
    [{"original_max_position_embeddings": -5}, {"beta_fast": -1.0}, {"rope_theta": 1.0}],
)
def test_numbers_of_yarn_that_give_no_frequency_are_refused(changes):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    with refused(InvalidWorkload, "Unreadable", "rope_parameters"):
        model(LLAMA, rope_parameters={**yarn, **changes})


def test_windows_are_those_of_each_family():
    assert model(GPT_NEO).arithmetic.windows == (0, 256)
    grouped = {**LLAMA, "num_key_value_heads": 2}
    qwen = {**grouped, "model_type": "qwen2", "sliding_window": 32, "max_window_layers": 2}
    assert model(qwen).arithmetic.windows == (0,)
    assert model(qwen, use_sliding_window=True).arithmetic.windows == (0, 0, 32, 32)
    mistral = {**grouped, "model_type": "mistral"}
    assert model(mistral).arithmetic.windows == (4096,)
    assert model(mistral, sliding_window=None).arithmetic.windows == (0,)
    assert shortest_cycle([1, 2, 1, 2, 1]) == (1, 2)


def test_positions_of_opt_begin_in_the_third_row():
    opt = model(OPT)
    assert (opt.max_positions, opt.arithmetic.position_offset) == (102, 2)
    assert opt.arithmetic.activation == "relu"
    assert opt.qkv_bias
    assert opt.bias
    lacking = model(OPT, do_layer_norm_before=False, word_embed_proj_dim=32).arithmetic.lacking
    assert [one.split("'")[1] for one in lacking] == ["do_layer_norm_before", "word_embed_proj_dim"]


@pytest.mark.parametrize("kinds", [5, [["global"]], "ab", [{}]])
@pytest.mark.parametrize("key", ["attention_layers", "attention_types"])
def test_layers_of_gpt_neo_that_cannot_be_read_are_named(key, kinds):
    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 250}
    found = model({"model_type": "gpt_neo", **sizes, key: kinds})
    assert any("attention_types" in lacking for lacking in found.arithmetic.lacking)


def test_kinds_of_layers_that_are_no_words_are_named():
    assert "layer_types" in " ".join(model(LLAMA, layer_types=[["x"], {}]).arithmetic.lacking)


def test_scores_that_are_dropped_take_memory():
    assert model(LLAMA, attention_dropout=0.1).scores == "eager"
    assert model(LLAMA).scores == "flash"


def test_dropout_of_gpt2_is_that_of_its_configuration_class():
    gpt2 = model({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 250})
    assert gpt2.dropout
    assert gpt2.arithmetic.residual_dropout == 0.1
    assert gpt2.qkv_bias
    assert gpt2.tied_head


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        ({"rms_norm_eps": "small"}, ("Malformed", "rms_norm_eps")),
        ({"pad_token_id": "<pad>"}, ("Malformed", "pad_token_id")),
        ({"attention_bias": "yes"}, ("Malformed", "attention_bias")),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, ("Unreadable", "rope_parameters")),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, ("Unreadable", "rope_parameters")),
        (
            {"rope_scaling": {"type": "linear", "factor": float("nan")}},
            ("Unreadable", "rope_parameters"),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 10**400}},
            ("Unreadable", "rope_parameters"),
        ),
        ({"rope_theta": 0}, ("Unreadable", "rope_parameters")),
        ({"layer_types": 5}, ("Malformed", "layer_types")),
    ],
)
def test_a_wrong_value_is_one_sentence(changes, mistake):
    with refused(InvalidWorkload, *mistake):
        model(LLAMA, **changes)
