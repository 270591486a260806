"""A tiny model of each family that the worker trains, dense ones and mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from planner.model.arithmetic import Arithmetic, Rotary, RotaryScaling
from planner.model.experts import Experts, Routing
from planner.model.shape import LatentAttention, ModelShape

_SIZES = {"layers": 4, "hidden": 32, "heads": 4, "ffn": 48, "vocab": 260}
_GPT = {"kv_heads": 4, "gated": False, "rotary": False, "bias": True, "max_positions": 40}
_YARN = RotaryScaling(
    kind="yarn", factor=4.0, original_positions=8, magnitude=1.0, score_magnitude=0.7
)
FAMILIES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape(
            name="gpt-neo",
            **_SIZES,
            **_GPT,
            tied_head=True,
            arithmetic=Arithmetic(
                norm_epsilon=1e-5, activation="gelu_tanh", windows=(0, 5), scale_scores=False
            ),
        ),
        ModelShape(
            name="gpt2",
            **_SIZES,
            **_GPT,
            qkv_bias=True,
            tied_head=True,
            dropout=True,
            arithmetic=Arithmetic(
                norm_epsilon=1e-5,
                activation="gelu_tanh",
                embedding_dropout=0.1,
                attention_dropout=0.2,
                residual_dropout=0.3,
            ),
        ),
        ModelShape(
            name="opt",
            **_SIZES,
            **_GPT,
            qkv_bias=True,
            arithmetic=Arithmetic(
                norm_epsilon=1e-5, activation="relu", position_offset=2, padding_token=ord(" ")
            ),
        ),
        ModelShape(
            name="llama3",
            **_SIZES,
            kv_heads=4,
            qkv_bias=True,
            o_bias=True,
            ffn_bias=True,
            arithmetic=Arithmetic(
                norm_epsilon=1e-5,
                rotary=Rotary(5e5, RotaryScaling(kind="llama3", factor=8.0, original_positions=16)),
            ),
        ),
        ModelShape(
            name="mistral",
            **_SIZES,
            kv_heads=4,
            arithmetic=Arithmetic(
                norm_epsilon=1e-5,
                windows=(6,),
                rotary=Rotary(1e4, RotaryScaling(kind="linear", factor=2.0)),
            ),
        ),
        ModelShape(
            name="qwen2",
            **_SIZES,
            kv_heads=4,
            qkv_bias=True,
            tied_head=True,
            dropout=True,
            arithmetic=Arithmetic(
                rotary=Rotary(1e6),
                windows=(0, 0, 7, 7),
                attention_dropout=0.1,
                padding_token=ord("e"),
            ),
        ),
        ModelShape(
            name="qwen3",
            **_SIZES,
            kv_heads=4,
            head_width=10,
            query_key_norm=True,
            arithmetic=Arithmetic(rotary=Rotary(1e6)),
        ),
    )
}

MIXTURES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape(
            name="mixtral",
            **_SIZES,
            kv_heads=4,
            experts=Experts(count=4, per_token=2, ffn=48, auxiliary=0.5),
            arithmetic=Arithmetic(norm_epsilon=1e-5, rotary=Rotary(1e6)),
        ),
        ModelShape(
            name="qwen3-moe",
            **_SIZES,
            kv_heads=4,
            head_width=10,
            query_key_norm=True,
            experts=Experts(
                count=8,
                per_token=3,
                ffn=24,
                dense_blocks=1,
                routing=Routing(renormalise=False),
            ),
            arithmetic=Arithmetic(rotary=Rotary(1e6)),
        ),
        ModelShape(
            name="deepseek-v2",  # queries are not compressed, and the method is greedy
            **_SIZES,
            kv_heads=4,
            head_width=12,
            latent=LatentAttention(query_rank=0, kv_rank=16, rope=4, value=10),
            experts=Experts(
                count=8,
                per_token=3,
                ffn=24,
                shared=2,
                dense_blocks=1,
                routing=Routing(renormalise=False, scale=1.5),
                auxiliary=0.5,
            ),
            arithmetic=Arithmetic(rotary=Rotary(1e4, _YARN)),
        ),
        ModelShape(
            name="deepseek-v2-groups",
            **_SIZES,
            kv_heads=4,
            head_width=12,
            latent=LatentAttention(query_rank=20, kv_rank=16, rope=4, value=10),
            experts=Experts(
                count=8,
                per_token=3,
                ffn=24,
                shared=1,
                routing=Routing(renormalise=False, scale=4.0, groups=4, groups_kept=2),
            ),
        ),
        ModelShape(
            name="deepseek-v3",
            **_SIZES,
            kv_heads=4,
            head_width=12,
            latent=LatentAttention(query_rank=20, kv_rank=16, rope=4, value=8),
            experts=Experts(
                count=8,
                per_token=2,
                ffn=24,
                shared=1,
                dense_blocks=2,
                routing=Routing(
                    score="sigmoid",
                    scale=2.5,
                    groups=4,
                    groups_kept=2,
                    group_score="two",
                    bias=True,
                ),
                auxiliary=0.1,
            ),
        ),
    )
}

ALL = {**FAMILIES, **MIXTURES}


def grouped(model: ModelShape, kv_heads: int) -> ModelShape:
    """The same with fewer heads of keys and values."""
    return replace(model, kv_heads=kv_heads)
