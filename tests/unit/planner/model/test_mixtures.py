"""Mixtures of experts from the configurations that are published with their weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.errors import InvalidWorkload
from planner.model.catalogue import find_model
from planner.model.config import model_of_config
from planner.model.experts import Experts, Routing
from planner.model.mixtures import WITHOUT_EFFECT
from planner.model.shape import LatentAttention
from planner.model.tensors import layer_tensors
from tests.refusals import WORDS, refused

_USUAL = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
MIXTRAL = {
    **_USUAL,
    "architectures": ["MixtralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "transformers_version": "4.36.0.dev0",
    "vocab_size": 32000,
}
QWEN3 = {
    **_USUAL,
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "transformers_version": "4.51.0",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
_DEEPSEEK = {
    **_USUAL,
    "attention_bias": False,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "pretraining_tp": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "v_head_dim": 128,
}
V2_LITE = {
    **_DEEPSEEK,
    "architectures": ["DeepseekV2ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "rope_scaling": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
V3 = {
    **_DEEPSEEK,
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
}
PUBLISHED = [MIXTRAL, QWEN3, V2_LITE, V3]


def model(config, **changes):
    return model_of_config({**config, **changes}, "mine")


def lacks(config, **changes):
    return model(config, **changes).arithmetic.lacking


def test_mixtral_is_the_one_of_the_catalogue():
    known = find_model("mixtral-8x7b")
    found = model_of_config(MIXTRAL, known.name)
    assert found == known
    assert found.experts == Experts(count=8, per_token=2, ffn=14336)


def test_qwen3_is_the_one_of_the_catalogue():
    known = find_model("qwen3-30b-a3b")
    assert model_of_config(QWEN3, known.name) == known


def test_deepseek_v3_has_the_routing_and_the_tensors_of_the_catalogue():
    known, found = find_model("deepseek-v3-like"), model(V3)
    assert (found.experts, found.latent) == (known.experts, known.latent)
    assert [layer_tensors(found, layer) for layer in (1, 4)] == [
        layer_tensors(known, layer) for layer in (1, 4)
    ]
    assert found.experts.routing == Routing(
        score="sigmoid", scale=2.5, groups=8, groups_kept=4, group_score="two", bias=True
    )


@pytest.mark.parametrize(
    "widths",
    [
        {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 16},
        {"qk_nope_head_dim": 0, "qk_rope_head_dim": 8, "v_head_dim": 8},
        {"qk_nope_head_dim": 8, "qk_rope_head_dim": 5, "v_head_dim": 8},
        {"qk_nope_head_dim": 8, "qk_rope_head_dim": 0, "v_head_dim": 8},
    ],
)
def test_widths_that_latent_attention_cannot_have_are_refused(widths):
    with refused(InvalidWorkload, "OutOfRange", "latent"):
        model({**V3, **widths})


def test_deepseek_v2_lite_compresses_no_queries_and_never_renormalises():
    found = model(V2_LITE)
    assert found.latent == LatentAttention(query_rank=0, kv_rank=512, rope=64, value=128)
    assert found.experts == Experts(
        count=64,
        per_token=6,
        ffn=1408,
        shared=2,
        dense_blocks=1,
        routing=Routing(renormalise=False),
        auxiliary=pytest.approx(0.001 * 26 / 6),  # summed over blocks, f divided by k
    )
    names = [tensor.name for tensor in layer_tensors(found, 2)]
    assert "2.q" in names
    assert "2.router_bias" not in names
    assert not any("q_up" in name for name in names)


def test_positions_of_deepseek_are_stretched_by_yarn():
    scaling = model(V2_LITE).arithmetic.rotary.scaling
    assert (scaling.kind, scaling.factor, scaling.original_positions) == ("yarn", 40, 4096)
    assert (scaling.fast_turns, scaling.slow_turns) == (32, 1)
    assert scaling.rotated_scale == 1
    assert scaling.score_scale == pytest.approx((0.1 * 0.707 * math.log(40) + 1) ** 2)
    assert replace(scaling, magnitude=0.0).rotated_scale == pytest.approx(1 + 0.1 * math.log(40))


def test_groups_of_deepseek_v2_count_where_its_method_has_them():
    grouped = model(V2_LITE, topk_method="group_limited_greedy", n_group=8, topk_group=3)
    assert (grouped.experts.routing.groups, grouped.experts.routing.groups_kept) == (8, 3)
    assert grouped.experts.routing.group_score == "best"
    assert model(V2_LITE, n_group=8, topk_group=3).experts.routing.groups == 1


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (MIXTRAL, []),
        (QWEN3, []),
        (V2_LITE, []),
        (V3, ["weights in fp8"]),
    ],
)
def test_a_published_configuration_lacks_what_is_named_and_nothing_else(config, named):
    lacking = lacks(config)
    assert len(lacking) == len(named)
    assert all(name in said for name, said in zip(named, lacking, strict=True))


@pytest.mark.parametrize("config", PUBLISHED, ids=lambda config: config["model_type"])
def test_an_unread_key_is_named(config):
    before = lacks(config)
    assert lacks(config, expert_capacity=2) == (*before, "the key 'expert_capacity' (2)")


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_keys_without_effect_are_not_named(key):
    for config in PUBLISHED:
        assert lacks(config, **{key: 2}) == lacks(config)


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (MIXTRAL, {"router_jitter_noise": 0.1}, "router_jitter_noise"),
        (QWEN3, {"mlp_only_layers": [5]}, "dense blocks behind"),
        (QWEN3, {"decoder_sparse_step": 2}, "dense blocks behind"),
        (QWEN3, {"num_local_experts": 64}, "num_experts"),
        (V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob"),
        (V2_LITE, {"seq_aux": False}, "seq_aux"),
        (V2_LITE, {"scoring_func": "sigmoid"}, "scoring_func"),
        (V2_LITE, {"topk_method": "random"}, "topk_method"),
        (V3, {"topk_method": "greedy"}, "topk_method"),
        (V3, {"moe_layer_freq": 2}, "moe_layer_freq"),
        (V3, {"qk_head_dim": 64}, "qk_head_dim"),
        (V3, {"rope_interleave": False}, "rope_interleave"),
        (QWEN3, {"quantization_config": {"bits": 4}}, "the key 'quantization_config'"),
    ],
)
def test_a_value_that_is_not_computed_is_named(config, changes, named):
    assert set(lacks(config)) < set(lacks(config, **changes))
    assert named in ", ".join(lacks(config, **changes))


def test_names_of_transformers_5_are_those_of_version_4():
    config = {key: value for key, value in QWEN3.items() if key != "num_experts"}
    config.pop("rope_theta")
    rope = {"rope_theta": 1000000.0, "rope_type": "default"}
    new = model(config, num_local_experts=128, rope_parameters=rope)
    assert new == model(QWEN3)


def test_the_first_blocks_may_be_dense():
    found = model(QWEN3, mlp_only_layers=[1, 0])
    assert found.experts.dense_blocks == 2
    assert not found.arithmetic.lacking
    assert [found.kind(layer) for layer in (1, 2, 3)] == ["block", "block", "moe_block"]


def test_an_auxiliary_loss_is_there_where_router_logits_are_asked_for():
    assert model(MIXTRAL).experts.auxiliary == 0.0
    assert model(MIXTRAL, output_router_logits=True).experts.auxiliary == 0.02


def test_windows_of_qwen3_moe_are_in_all_blocks():
    asked = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}
    assert model(QWEN3, **asked).arithmetic.windows == (64,)
    assert model(MIXTRAL, sliding_window=4096).arithmetic.windows == (4096,)


@pytest.mark.parametrize(
    ("config", "changes", "mistake"),
    [
        (QWEN3, {"mlp_only_layers": "none"}, ("Malformed", "mlp_only_layers")),
        (QWEN3, {"decoder_sparse_step": 0}, ("Malformed", "mlp_only_layers")),
        (QWEN3, {"norm_topk_prob": 1}, ("Malformed", "norm_topk_prob")),
        (MIXTRAL, {"num_experts_per_tok": 9}, ("OutOfRange", "num_experts_per_tok")),
        (QWEN3, {"num_experts_per_tok": 129}, ("OutOfRange", "num_experts_per_tok")),
        (V3, {"num_experts_per_tok": 0}, ("OutOfRange", "num_experts_per_tok")),
        (QWEN3, {"decoder_sparse_step": 49}, ("OutOfRange", "experts")),
        (V3, {"topk_group": 0}, ("OutOfRange", "topk_group")),
        (V3, {"topk_group": 9}, ("OutOfRange", "topk_group")),
        (V3, {"num_experts_per_tok": 129}, ("OutOfRange", "topk_group")),  # 4 groups hold 128
        (V3, {"n_group": 7}, ("OutOfRange", "n_group")),
        (V3, {"n_group": 256}, ("OutOfRange", "n_group")),  # a group's score is that of two
        (V3, {"n_group": 0}, ("OutOfRange", "n_group")),
    ],
)
def test_a_mixture_that_cannot_be_is_one_sentence(config, changes, mistake):
    with refused(InvalidWorkload, *mistake):
        model(config, **changes)


@pytest.mark.parametrize(
    ("config", "changes", "allowed"),
    [
        (MIXTRAL, {"num_experts_per_tok": 9}, "from 1 to 8"),
        (V3, {"topk_group": 9}, "from 1 to 8"),
        (V3, {"topk_group": 1, "num_experts_per_tok": 33}, "from 2 to 8"),
        (V3, {"n_group": 7}, "from 1 to 128, and divide 256"),
    ],
)
def test_a_mixture_that_cannot_be_names_the_key_its_value_and_what_is_allowed(
    config, changes, allowed
):
    (key, value), *_ = changes.items()
    with refused(InvalidWorkload, "OutOfRange", key) as found:
        model(config, **changes)
    said = str(found.value)
    assert said.startswith(f"{key} is {value} ")
    assert allowed in said
    assert len(said.split()) <= WORDS
