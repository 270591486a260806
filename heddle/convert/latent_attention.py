"""DeepSeek's models in Megatron's arguments: latent attention with a mixture of experts.

With a softmax as score the blocks are DeepSeek-V2's, with a sigmoid DeepSeek-V3's.  A sigmoid
router without a bias is DeepSeek-V3's with biases that stay zero.
Megatron adds up the best k / kept scores of a group, rounded down: one is DeepSeek-V2's rule, two
are DeepSeek-V3's.  Its auxiliary loss counts a token's best scores, whatever the groups.
Invariant: what would train another model is refused by name.
Source: megatron/training/arguments.py; megatron/core/transformer/multi_latent_attention.py and
moe/moe_utils.py; megatron/core/models/common/embeddings/yarn_rotary_pos_embedding.py.
"""

from __future__ import annotations

from typing import Any

from heddle.convert.experts import auxiliary_weight, dense_blocks
from heddle.convert.refusals import refuse_others
from heddle.convert.words import Words
from heddle_operator.apis.errors import InvalidArguments

BIAS_RATE = 1e-3  # Megatron's, where nothing is said
_NORM_EPSILON = 1e-6  # of the norms of what is compressed, in both families
_POSITIONS = 4096  # of the first training, Megatron's where nothing is said
_SCORE = "--moe-router-score-function"
_KEPT = "--moe-router-group-topk"


def router_bias_rate(words: Words) -> float | None:
    """Change of an expert's bias after a step; None where experts have none."""
    if not words.has("--multi-latent-attention") or words.text(_SCORE) != "sigmoid":
        return None
    has_bias = words.has("--moe-router-enable-expert-bias")
    rate = words.number("--moe-router-bias-update-rate", BIAS_RATE)
    return rate if has_bias else 0.0


def with_latent_attention(words: Words, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a dense model, with latent attention and DeepSeek's experts.

    Raises:
        InvalidArguments: they are of neither family.
    """
    count = words.count("--num-experts")
    if count is None:
        raise _missing("--num-experts", "latent attention is DeepSeek's, whose blocks have experts")
    _check_attention(words, config)
    score = words.text(_SCORE, "softmax")
    if score not in ("softmax", "sigmoid"):
        raise _refused(_SCORE, f"is {score}; give softmax or sigmoid")
    is_sigmoid = score == "sigmoid"
    per_token = words.count("--moe-router-topk", 2) or 0
    groups, kept = _groups(words, per_token, best=2 if is_sigmoid else 1)
    dense = dense_blocks(words, config["num_hidden_layers"])
    width = words.count("--moe-ffn-hidden-size") or config["intermediate_size"]
    config = {key: value for key, value in config.items() if key != "head_dim"}
    config |= {
        "attention_bias": False,
        "aux_loss_alpha": auxiliary_weight(words),
        "first_k_dense_replace": dense,
        "kv_lora_rank": words.count("--kv-lora-rank", 32),
        "moe_intermediate_size": width,
        "moe_layer_freq": 1,
        "n_group": groups,
        "n_routed_experts": count,
        "n_shared_experts": _shared(words, width),
        "num_experts_per_tok": per_token,
        "q_lora_rank": words.count("--q-lora-rank"),
        "qk_nope_head_dim": words.count("--qk-head-dim", 128),
        "qk_rope_head_dim": words.count("--qk-pos-emb-head-dim", 64),
        "rope_scaling": _stretched(words),
        "routed_scaling_factor": words.number("--moe-router-topk-scaling-factor") or 1.0,
        "scoring_func": score,
        "seq_aux": True,
        "topk_group": kept,
        "v_head_dim": words.count("--v-head-dim", 128),
    }
    return config | (_v3(per_token) if is_sigmoid else _v2(words, config))


def _v3(per_token: int) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "norm_topk_prob": per_token > 1,  # Megatron leaves a single score as it is
        "topk_method": "noaux_tc",
    }


def _v2(words: Words, config: dict[str, Any]) -> dict[str, Any]:
    refuse_others(words, {"--moe-router-enable-expert-bias": (None, "its scores are a sigmoid")})
    if not words.has("--moe-router-pre-softmax"):
        reason = "without it the weights of a token's experts add up to one, DeepSeek-V2's do not"
        raise _missing("--moe-router-pre-softmax", reason)
    has_groups = config["n_group"] > 1
    if has_groups and config["aux_loss_alpha"]:
        raise _refused(
            "--moe-aux-loss-coeff",
            "counts a token's best scores, DeepSeek-V2 counts those in its groups; give 0, or no "
            "groups",
        )
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "norm_topk_prob": False,
        "topk_method": "group_limited_greedy" if has_groups else "greedy",
    }


def _check_attention(words: Words, config: dict[str, Any]) -> None:
    """Refuse attention that is not DeepSeek's."""
    if not words.has("--qk-layernorm"):
        reason = "without it Megatron leaves out the norms of compressed queries and keys"
        raise _missing("--qk-layernorm", reason)
    if config["rms_norm_eps"] != _NORM_EPSILON:
        raise _refused(
            "--norm-epsilon",
            f"is {config['rms_norm_eps']:g} (Megatron's default is 1e-05); norms of compressed "
            f"queries and keys have {_NORM_EPSILON:g}, give that",
        )
    if config["num_key_value_heads"] != config["num_attention_heads"]:
        raise _refused(
            "--num-query-groups",
            f"is {config['num_key_value_heads']}; with latent attention each head has keys of its "
            "own, leave it out",
        )


def _shared(words: Words, width: int) -> int:
    """How many experts every token visits; Megatron states the width of all together."""
    name = "--moe-shared-expert-intermediate-size"
    total = words.count(name, 0) or 0
    if total % width:
        raise InvalidArguments(
            f"{name} is {total}, no multiple of an expert's width {width}; make them agree",
            field=name,
            code="OutOfRange",
        )
    return total // width


def _groups(words: Words, per_token: int, best: int) -> tuple[int, int]:
    """Groups of experts, and how many a token keeps; a group is worth its `best` experts."""
    name = "--moe-router-num-groups"
    groups, kept = words.count(name), words.count(_KEPT)
    if (groups is None) != (kept is None):
        raise InvalidArguments(
            f"{name} and {_KEPT} belong together; give both or none",
            field=name if groups is None else _KEPT,
            code="Contradiction",
        )
    if not groups or not kept or groups == kept:
        return 1, 1
    if per_token // kept != best:
        raise _refused(
            _KEPT,
            f"is {kept} with {per_token} experts of a token; Megatron's worth of a group is then "
            f"its best {per_token // kept}, this family's its best {best}",
        )
    return groups, kept


def _stretched(words: Words) -> dict[str, Any] | None:
    """The yarn scaling of rotary positions; None: there is none."""
    factor = words.number("--rotary-scaling-factor", 1.0) or 0.0
    both = words.number("--mscale-all-dim", 0.0) or 0.0
    one = words.number("--mscale", 1.0) or 0.0
    kind = words.text("--rope-type", "yarn")
    if factor < 1:
        raise InvalidArguments(
            f"--rotary-scaling-factor is {factor:g}; it must be at least 1",
            field="--rotary-scaling-factor",
            code="OutOfRange",
        )
    if kind not in ("yarn", "rope"):
        raise _refused("--rope-type", f"is {kind}; give yarn or rope")
    if factor == 1:
        return None
    if kind == "rope":
        if both:
            reason = "is rope, where --mscale-all-dim scales the scores alone; give yarn, or 1 "
            raise _refused("--rope-type", f"{reason}as --rotary-scaling-factor")
        return None
    if (one, both) != (1.0, 0.0) and not (one and both):
        raise _refused(
            "--mscale",
            f"is {one:g} with --mscale-all-dim {both:g}; DeepSeek has both above 0, or 1 and 0",
        )
    magnitudes = {"mscale": one, "mscale_all_dim": both} if both else {}
    return {
        "beta_fast": words.number("--beta-fast", 32.0),
        "beta_slow": words.number("--beta-slow", 1.0),
        "factor": factor,
        "original_max_position_embeddings": words.count(
            "--original-max-position-embeddings", _POSITIONS
        ),
        "type": "yarn",
        **magnitudes,
    }


def _refused(name: str, rest: str) -> InvalidArguments:
    return InvalidArguments(f"{name} {rest}", field=name, code="Unsupported")


def _missing(name: str, reason: str) -> InvalidArguments:
    return InvalidArguments(f"{name} is missing; {reason}, give it", field=name, code="Missing")
