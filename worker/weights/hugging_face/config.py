"""config.json: how two are compared, and the one that is written beside final weights.

Invariant: nothing here imports torch; an agent compares before it has any.
Source: the configurations that `transformers` writes.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InvalidWorkload
from planner.model.config import read_config
from planner.model.experts import Experts, Routing
from planner.model.shape import LatentAttention, ModelShape
from worker.weights.hugging_face.families import FAMILIES

# What belongs to a model besides its weights and its config.json, as `transformers` names it.
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
# What says where a file came from, not what the model is.
_ORIGIN = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


def digest(config: Mapping[str, Any]) -> str:
    """A short hash of what a configuration says of the model, however it is laid out."""
    said = {key: value for key, value in config.items() if key not in _ORIGIN}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(wanted: Mapping[str, Any], folder: Path) -> str | None:
    """None if the folder's config.json says what `wanted` says, else one sentence."""
    try:
        found = read_config(folder)
    except InvalidWorkload as error:
        return str(error)
    if digest(found) == digest(wanted):
        return None
    keys = [key for key in sorted({*wanted, *found}) if key not in _ORIGIN]
    key = next(key for key in keys if wanted.get(key) != found.get(key))
    return (
        f"the job's config.json has digest {digest(wanted)} and {key} "
        f"{reprlib.repr(wanted.get(key))}, that of {folder} has {digest(found)} and "
        f"{reprlib.repr(found.get(key))}; give the job the config.json of its own folder"
    )


def final_config(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The dtype's name in a config.json, `float32` and the like."""
    kind = str(config.get("model_type"))
    left_out = ("_name_or_path", "torch_dtype")
    kept = {key: value for key, value in config.items() if key not in left_out}
    kept["dtype"] = dtype
    if kind in FAMILIES:
        kept["architectures"] = [FAMILIES[kind].architecture]
    return dict(sorted(kept.items()))


def config_of(model: ModelShape) -> dict[str, Any] | None:
    """The config.json of a model that came from none; None if no family has it.

    A model of the catalogue is a LLaMA, a Qwen, a Mixtral, a DeepSeek or a GPT-Neo.
    """
    if model.own is not None:
        return None
    if model.latent is not None:
        return _deepseek(model, model.latent)
    if model.rotary and not model.bias:
        return _llama(model)
    if not model.rotary and model.bias and not model.qkv_bias and not model.arithmetic.scale_scores:
        return _gpt_neo(model)
    return None


def _llama(model: ModelShape) -> dict[str, Any] | None:
    arithmetic = model.arithmetic
    if model.experts is not None:
        return _mixture(model, model.experts)
    kind = "qwen3" if model.query_key_norm else "qwen2" if model.qkv_bias else "llama"
    if model.o_bias or model.ffn_bias or set(arithmetic.windows) != {0} or not model.gated:
        return None
    found = _decoder(model, kind)
    if kind == "qwen2":
        found.pop("head_dim")
    else:
        found["attention_bias"] = False
    if kind == "llama":
        return found | {"mlp_bias": False, "pretraining_tp": 1}
    return found | {
        "layer_types": ["full_attention"] * model.layers,
        "max_window_layers": model.layers,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _mixture(model: ModelShape, experts: Experts) -> dict[str, Any] | None:
    """Mixtral's or Qwen3-MoE's, whose keys are those of the files."""
    if experts.shared or experts.routing not in (Routing(), Routing(renormalise=False)):
        return None
    kind = "qwen3_moe" if model.query_key_norm else "mixtral"
    found = _decoder(model, kind) | {
        "num_experts_per_tok": experts.per_token,
        "num_local_experts": experts.count,
        "output_router_logits": experts.auxiliary > 0,
        "router_aux_loss_coef": experts.auxiliary,
        "sliding_window": None,
    }
    if kind == "qwen3_moe":
        return found | {
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [*range(experts.dense_blocks)],
            "moe_intermediate_size": experts.ffn,
            "norm_topk_prob": experts.routing.renormalise,
            "use_sliding_window": False,
        }
    if experts.dense_blocks or not experts.routing.renormalise or model.qkv_bias:
        return None
    return found | {"intermediate_size": experts.ffn, "router_jitter_noise": 0.0}


def _deepseek(model: ModelShape, latent: LatentAttention) -> dict[str, Any] | None:
    """DeepSeek-V2's or -V3's."""
    experts = model.experts
    if experts is None or not experts.shared or model.bias or not model.gated:
        return None
    routing, blocks = experts.routing, model.layers - experts.dense_blocks
    is_third = routing.bias
    groups = {"n_group": routing.groups, "topk_group": routing.groups_kept}
    found = _decoder(model, "deepseek_v3" if is_third else "deepseek_v2") | {
        "attention_bias": False,
        "first_k_dense_replace": experts.dense_blocks,
        "head_dim": latent.rope,
        "kv_lora_rank": latent.kv_rank,
        "moe_intermediate_size": experts.ffn,
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared,
        "norm_topk_prob": routing.renormalise,
        "num_experts_per_tok": experts.per_token,
        "output_router_logits": False,
        "pretraining_tp": 1,
        "q_lora_rank": latent.query_rank or None,
        "qk_head_dim": model.head_dim,
        "qk_nope_head_dim": model.head_dim - latent.rope,
        "qk_rope_head_dim": latent.rope,
        "routed_scaling_factor": routing.scale,
        "v_head_dim": latent.value,
        **groups,
    }
    if experts.auxiliary:  # as DeepSeek's own configurations say it
        found["aux_loss_alpha"] = experts.auxiliary * experts.per_token / blocks
    if is_third:
        found |= {"num_nextn_predict_layers": 0, "rope_interleave": True}
    else:
        method = "group_limited_greedy" if routing.groups > 1 else "greedy"
        found |= {"mlp_bias": False, "topk_method": method}
    return found


def _decoder(model: ModelShape, kind: str) -> dict[str, Any]:
    """The keys of every decoder with rotary positions."""
    arithmetic = model.arithmetic
    return {
        "attention_dropout": arithmetic.attention_dropout,
        "bos_token_id": None,
        "eos_token_id": None,
        "head_dim": model.head_dim,
        "hidden_act": _ACTIVATIONS[arithmetic.activation],
        "hidden_size": model.hidden,
        "initializer_range": arithmetic.initial_deviation,
        "intermediate_size": model.ffn,
        "max_position_embeddings": 2048,
        "model_type": kind,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "pad_token_id": arithmetic.padding_token,
        "rms_norm_eps": arithmetic.norm_epsilon,
        "rope_parameters": _rope(model),
        "tie_word_embeddings": model.tied_head,
        "use_cache": True,
        "vocab_size": model.vocab,
    }


def _rope(model: ModelShape) -> dict[str, Any]:
    rotary = model.arithmetic.rotary
    found: dict[str, Any] = {"rope_theta": rotary.base, "rope_type": "default"}
    scaling = rotary.scaling
    if scaling is not None:
        found |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            found |= {
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                "original_max_position_embeddings": scaling.original_positions,
            }
        elif scaling.kind == "yarn":
            found |= {
                "beta_fast": scaling.fast_turns,
                "beta_slow": scaling.slow_turns,
                "original_max_position_embeddings": scaling.original_positions,
            }
            if scaling.magnitude:
                found["mscale"] = scaling.magnitude
            if scaling.score_magnitude:
                found["mscale_all_dim"] = scaling.score_magnitude
    return found


def _gpt_neo(model: ModelShape) -> dict[str, Any]:
    arithmetic = model.arithmetic
    windows = [arithmetic.window(block) for block in range(1, model.layers + 1)]
    layers = ["local" if window else "global" for window in windows]
    return {
        "activation_function": _ACTIVATIONS[arithmetic.activation],
        "attention_dropout": arithmetic.attention_dropout,
        "attention_layers": layers,
        "attention_types": [[[layer], 1] for layer in layers],
        "bos_token_id": None,
        "classifier_dropout": 0.1,
        "embed_dropout": arithmetic.embedding_dropout,
        "eos_token_id": None,
        "hidden_size": model.hidden,
        "initializer_range": arithmetic.initial_deviation,
        "intermediate_size": model.ffn,
        "layer_norm_epsilon": arithmetic.norm_epsilon,
        "max_position_embeddings": model.max_positions,
        "model_type": "gpt_neo",
        "num_heads": model.heads,
        "num_layers": model.layers,
        "pad_token_id": None,
        "resid_dropout": arithmetic.residual_dropout,
        "tie_word_embeddings": model.tied_head,
        "use_cache": True,
        "vocab_size": model.vocab,
        "window_size": max([*windows, 0]) or 256,
    }
