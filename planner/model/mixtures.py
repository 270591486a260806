"""The families of mixtures of experts, read from their Hugging Face configurations.

Where a key is absent its value is that of the family's configuration class.  A configuration of
`transformers` 5 says `num_local_experts` where one of version 4 may say `num_experts`.
Source: the configuration and model classes of `transformers`; DeepSeek's own configurations.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping

from planner.errors import InvalidWorkload
from planner.model.configuration import Configuration
from planner.model.experts import Experts, Routing
from planner.model.families import decoder, windows_of
from planner.model.shape import LARGEST, LatentAttention, ModelShape

# Keys of these families that change no number of a training, and why.
WITHOUT_EFFECT: Mapping[str, str] = {
    "auto_map": "names code of the model's own, which is never run",
    "ep_size": "says how the model's own code spreads experts; the plan says it here",
    "max_window_layers": "windows of this family are in all blocks or in none",
    "num_nextn_predict_layers": "counts MTP layers behind the last block, which are left out",
    "num_mtp_layers": "the same under another name",
}
# What these families call the facts of a mixture that a user may get wrong.
_KEYS = {
    "per_token": "num_experts_per_tok",
    "groups": "n_group",
    "groups_kept": "topk_group",
}


def _mixtral(name: str, c: Configuration) -> ModelShape:
    c.require("router_jitter_noise", wanted=0.0)
    count = c.number("num_local_experts", "num_experts", default=8)
    experts = Experts(
        count=count,
        per_token=c.number("num_experts_per_tok", default=2),
        ffn=c.number("intermediate_size", default=14336),
        auxiliary=_auxiliary(c),
    )
    width = c.number("sliding_window", default=0)
    windows = windows_of(c, [width] * c.number("num_hidden_layers"), width)
    return _mixture(
        name,
        c,
        experts,
        windows=windows,
        norm_epsilon=1e-5,
        rotary_base=1e6,
        absent_kv_heads=8,
    )


def _qwen3_moe(name: str, c: Configuration) -> ModelShape:
    count = c.number("num_local_experts", "num_experts", default=128)
    c.require("num_experts", wanted=count)
    experts = Experts(
        count=count,
        per_token=c.number("num_experts_per_tok", default=8),
        ffn=c.number("moe_intermediate_size", default=768),
        dense_blocks=_dense_blocks(c),
        routing=Routing(renormalise=c.flag("norm_topk_prob", default=False)),
        auxiliary=_auxiliary(c),
    )
    layers, width = c.number("num_hidden_layers"), c.number("sliding_window", default=0)
    width = width if c.flag("use_sliding_window", default=False) else 0
    biased = c.flag("attention_bias", default=False)
    return _mixture(
        name,
        c,
        experts,
        windows=windows_of(c, [width] * layers, width),
        absent_kv_heads=4,
        qkv_bias=biased,
        o_bias=biased,
        query_key_norm=True,
    )


def _deepseek_v2(name: str, c: Configuration) -> ModelShape:
    c.require("scoring_func", wanted="softmax")
    c.require("norm_topk_prob", wanted=False)
    method = c.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        c.lacking.append(f"the key 'topk_method' ({reprlib.repr(method)})")
    groups, kept = c.number("n_group", default=1), c.number("topk_group", default=1)
    has_groups = method == "group_limited_greedy"
    routing = Routing(
        renormalise=False,
        scale=c.real("routed_scaling_factor", 1.0, LARGEST),
        groups=groups if has_groups else 1,
        groups_kept=kept if has_groups else 1,
    )
    return _deepseek(name, c, routing, dense_blocks=0, shared=2)


def _deepseek_v3(name: str, c: Configuration) -> ModelShape:
    c.require("scoring_func", wanted="sigmoid")
    c.require("topk_method", wanted="noaux_tc")
    c.require("rope_interleave", wanted=True)
    routing = Routing(
        score="sigmoid",
        renormalise=c.flag("norm_topk_prob", default=True),
        scale=c.real("routed_scaling_factor", 2.5, LARGEST),
        groups=c.number("n_group", default=8),
        groups_kept=c.number("topk_group", default=4),
        group_score="two",
        bias=True,
    )
    return _deepseek(name, c, routing, dense_blocks=3, shared=1)


def _deepseek(
    name: str, c: Configuration, routing: Routing, *, dense_blocks: int, shared: int
) -> ModelShape:
    """What both have in common; the last two are said by their configuration classes."""
    c.require("moe_layer_freq", wanted=1)
    c.require("attention_bias", wanted=False)
    c.require("mlp_bias", wanted=False)
    c.require("num_key_value_heads", wanted=c.number("num_attention_heads"))
    auxiliary = c.real("aux_loss_alpha", 0.0)
    if auxiliary:
        c.require("seq_aux", wanted=True)
    else:
        c.flag("seq_aux", default=True)
    if c.flag("output_router_logits", default=False):
        c.lacking.append("the key 'output_router_logits' (True)")
    per_token = c.number("num_experts_per_tok")
    dense = c.number("first_k_dense_replace", default=dense_blocks)
    experts = Experts(
        count=c.number("n_routed_experts", "num_local_experts", "num_experts"),
        per_token=per_token,
        ffn=c.number("moe_intermediate_size"),
        shared=c.number("n_shared_experts", default=shared),
        dense_blocks=dense,
        routing=routing,
        # theirs is the sum over the blocks, and f is divided by k; see `Experts.auxiliary`
        auxiliary=auxiliary * max(0, c.number("num_hidden_layers") - dense) / max(1, per_token),
    )
    rope = c.number("qk_rope_head_dim", default=64)
    width = c.number("qk_nope_head_dim", default=128) + rope
    c.require("qk_head_dim", wanted=width)
    latent = LatentAttention(
        query_rank=_query_rank(c),
        kv_rank=c.number("kv_lora_rank", default=512),
        rope=rope,
        value=c.number("v_head_dim", default=128),
    )
    return _mixture(name, c, experts, latent=latent, head_width=width)


def _mixture(name: str, c: Configuration, experts: Experts, **facts: object) -> ModelShape:
    """The model, once its experts are possible."""
    experts.check(name, c.number("num_hidden_layers"), _KEYS)
    for key in WITHOUT_EFFECT:
        c.get(key)
    return decoder(name, c, experts=experts, **facts)  # type: ignore[arg-type] # facts of a family


def _query_rank(c: Configuration) -> int:
    """Width of the compressed queries; null says that they are not compressed."""
    return c.number("q_lora_rank", default=1536 if c.is_absent("q_lora_rank") else 0)


def _auxiliary(c: Configuration) -> float:
    """What the auxiliary loss counts for: `transformers` adds it where router logits are asked for.

    It computes one for all blocks of a micro-batch together; here each sample has its own.
    """
    weight = c.real("router_aux_loss_coef", 0.001)
    return weight if c.flag("output_router_logits", default=False) else 0.0


def _dense_blocks(c: Configuration) -> int:
    """How many blocks come before the first with experts; no block behind that one is dense."""
    layers, step = c.number("num_hidden_layers"), c.number("decoder_sparse_step", default=1)
    named = c.get("mlp_only_layers", [])
    is_list = isinstance(named, list) and all(type(one) is int for one in named)
    if not is_list or step < 1:
        raise InvalidWorkload(
            f"model has mlp_only_layers {reprlib.repr(named)} and decoder_sparse_step {step}; "
            "give a list of blocks, and a step of at least 1",
            field="mlp_only_layers",
            code="Malformed",
        )
    dense = [block for block in range(layers) if block in named or (block + 1) % step]
    first = next((index for index, block in enumerate(dense) if index != block), len(dense))
    if first != len(dense):
        c.lacking.append(f"dense blocks behind blocks with experts ({reprlib.repr(dense)})")
    return first


READERS: Mapping[str, Callable[[str, Configuration], ModelShape]] = {
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
}
