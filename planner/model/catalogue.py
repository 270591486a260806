"""The models that have a name; any other comes from a Hugging Face `config.json`.

Invariant: a name stands for one shape for ever; profiles are keyed by it.
Sources: the published configurations of LLaMA-3, Qwen3, Mixtral and DeepSeek-V3; GPT-Neo-2.7B with
32 heads of 80, as Sailor's operator profiles ran it, where the published one has 20 of 128: equal
parameters, and TP 8 divides it; its dropout is Megatron's default.
"""

from __future__ import annotations

from pathlib import Path

from planner.errors import InvalidWorkload
from planner.model.arithmetic import Arithmetic, Rotary
from planner.model.config import model_from_config
from planner.model.experts import Experts, Routing
from planner.model.shape import LatentAttention, ModelShape
from planner.wording import did_you_mean

_QWEN3 = {
    "hidden": 5120,
    "heads": 64,
    "kv_heads": 8,
    "ffn": 25600,
    "vocab": 151936,
    "head_width": 128,
    "query_key_norm": True,
    "arithmetic": Arithmetic(rotary=Rotary(1e6)),
}

MODELS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape(name="tiny-llama", layers=6, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=256),
        ModelShape(
            name="tiny-mixtral",
            layers=4,
            hidden=64,
            heads=4,
            kv_heads=4,
            ffn=64,
            vocab=256,
            experts=Experts(count=4, per_token=2, ffn=64, auxiliary=0.02),
            arithmetic=Arithmetic(norm_epsilon=1e-5, rotary=Rotary(1e6)),
        ),
        ModelShape(
            name="tiny-deepseek",
            layers=4,
            hidden=64,
            heads=4,
            kv_heads=4,
            ffn=128,
            vocab=256,
            head_width=24,
            experts=Experts(
                count=8,
                per_token=2,
                ffn=32,
                shared=1,
                dense_blocks=1,
                routing=Routing(
                    score="sigmoid",
                    scale=2.5,
                    groups=4,
                    groups_kept=2,
                    group_score="two",
                    bias=True,
                ),
            ),
            latent=LatentAttention(query_rank=32, kv_rank=32, rope=8, value=16),
        ),
        ModelShape(
            name="llama3-8b",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            ffn=14336,
            vocab=128256,
            arithmetic=Arithmetic(norm_epsilon=1e-5, rotary=Rotary(5e5)),
        ),
        ModelShape(name="qwen3-32b", layers=64, **_QWEN3),  # type: ignore[arg-type]
        ModelShape(name="qwen3-64b", layers=128, recompute="full", **_QWEN3),  # type: ignore[arg-type]
        ModelShape(
            name="gpt-neo-2.7b",
            layers=32,
            hidden=2560,
            heads=32,
            kv_heads=32,
            ffn=10240,
            vocab=50257,
            gated=False,
            rotary=False,
            max_positions=2048,
            tied_head=True,
            bias=True,
            dropout=True,
            scores="fused",
            arithmetic=Arithmetic(
                norm_epsilon=1e-5,
                activation="gelu_tanh",
                windows=(0, 256),
                scale_scores=False,
                embedding_dropout=0.1,
                attention_dropout=0.1,
                residual_dropout=0.1,
            ),
        ),
        ModelShape(
            name="mixtral-8x7b",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            ffn=14336,
            vocab=32000,
            experts=Experts(count=8, per_token=2, ffn=14336),
            arithmetic=Arithmetic(norm_epsilon=1e-5, rotary=Rotary(1e6)),
        ),
        ModelShape(
            name="qwen3-30b-a3b",
            layers=48,
            hidden=2048,
            heads=32,
            kv_heads=4,
            ffn=6144,
            vocab=151936,
            head_width=128,
            query_key_norm=True,
            experts=Experts(count=128, per_token=8, ffn=768),
            arithmetic=Arithmetic(rotary=Rotary(1e6)),
        ),
        ModelShape(
            name="deepseek-v3-like",
            layers=61,
            hidden=7168,
            heads=128,
            kv_heads=128,
            ffn=18432,
            vocab=129280,
            head_width=192,
            experts=Experts(
                count=256,
                per_token=8,
                ffn=2048,
                shared=1,
                dense_blocks=3,
                routing=Routing(
                    score="sigmoid",
                    scale=2.5,
                    groups=8,
                    groups_kept=4,
                    group_score="two",
                    bias=True,
                ),
            ),
            latent=LatentAttention(query_rank=1536, kv_rank=512, rope=64, value=128),
        ),
    )
}


def find_model(name: str) -> ModelShape:
    """The model of that name, or of that `config.json` or the folder that holds it.

    Raises:
        InvalidWorkload: there is none; the message lists those there are.
    """
    if name in MODELS:
        return MODELS[name]
    if name.endswith(".json"):
        return model_from_config(Path(name))
    if (Path(name) / "config.json").is_file():
        return model_from_config(Path(name) / "config.json")
    raise InvalidWorkload(
        f"model {name!r} is unknown{did_you_mean(name, MODELS)}; the models are "
        f"{', '.join(MODELS)}, or give the path of a Hugging Face config.json or its folder",
        code="Unknown",
    )
