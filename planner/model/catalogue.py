"""The models that have a name, and any other from a Hugging Face `config.json`.

Invariant: a name stands for one shape for ever; profiles are keyed by it.
Sources: the table of configurations in the project's research on planners (LLaMA-3, Qwen3, Mixtral,
DeepSeek-V3: their published configurations; GPT-Neo-2.7B with 32 heads of 80, as Sailor's operator
profiles ran it, where the published one has 20 of 128: equal parameters, and TP 8 divides it).
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planner.errors import InvalidWorkload
from planner.model.shape import LARGEST, Experts, LatentAttention, ModelShape, Scores
from planner.wording import did_you_mean

_QWEN3 = {
    "hidden": 5120,
    "heads": 64,
    "kv_heads": 8,
    "ffn": 25600,
    "vocab": 151936,
    "head_width": 128,
    "query_key_norm": True,
}

MODELS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("tiny-llama", layers=6, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=256),
        ModelShape(
            "llama3-8b", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256
        ),
        ModelShape("qwen3-32b", layers=64, **_QWEN3),  # type: ignore[arg-type]
        ModelShape("qwen3-64b", layers=128, recompute="full", **_QWEN3),  # type: ignore[arg-type]
        ModelShape(
            "gpt-neo-2.7b",
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
        ),
        ModelShape(
            "mixtral-8x7b",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            ffn=14336,
            vocab=32000,
            experts=Experts(count=8, per_token=2, ffn=14336),
        ),
        ModelShape(
            "qwen3-30b-a3b",
            layers=48,
            hidden=2048,
            heads=32,
            kv_heads=4,
            ffn=6144,
            vocab=151936,
            head_width=128,
            query_key_norm=True,
            experts=Experts(count=128, per_token=8, ffn=768),
        ),
        ModelShape(
            "deepseek-v3-like",
            layers=61,
            hidden=7168,
            heads=128,
            kv_heads=128,
            ffn=18432,
            vocab=129280,
            head_width=192,
            experts=Experts(count=256, per_token=8, ffn=2048, shared=1, dense_blocks=3),
            latent=LatentAttention(query_rank=1536, kv_rank=512, rope=64, value=128),
        ),
    )
}


def find_model(name: str) -> ModelShape:
    """The model of that name, or of that `config.json`.

    Raises:
        InvalidWorkload: there is none; the message lists those there are.
    """
    if name in MODELS:
        return MODELS[name]
    if name.endswith(".json"):
        return model_from_config(Path(name))
    raise InvalidWorkload(
        f"model {name!r} is unknown{did_you_mean(name, MODELS)}; the models are "
        f"{', '.join(MODELS)}, or give the path of a Hugging Face config.json"
    )


def model_from_config(path: Path) -> ModelShape:
    """The model of a Hugging Face `config.json`; its name is `_name_or_path`, or the folder's name.

    Raises:
        InvalidWorkload: the file cannot be read, its architecture is unknown, or a key is missing.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidWorkload(f"model configuration {path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise InvalidWorkload(
            f"model configuration {path} must hold one JSON object, found {type(config).__name__}"
        )
    kind = config.get("model_type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InvalidWorkload(
            f"model configuration {path} has model_type {kind!r}, which is unknown; known are "
            f"{', '.join(sorted(_READERS))}"
        )
    name = str(config.get("_name_or_path") or path.resolve().parent.name).rstrip("/").split("/")[-1]
    return reader(name, _Config(config, path))


class _Config:
    """A configuration whose numbers are checked when they are asked for."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values, self._path = values, path

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of these keys that is there."""
        for key in keys:
            value = self._values.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
                raise InvalidWorkload(
                    f"model configuration {self._path} has {key} {reprlib.repr(value)}; it must "
                    f"be a positive whole number up to {LARGEST:,}"
                )
            return value
        if default is None:
            raise InvalidWorkload(
                f"model configuration {self._path} lacks {' or '.join(map(repr, keys))}"
            )
        return default

    def positive(self, *keys: str) -> bool:
        """Whether any of these keys is there and above 0."""
        return any(bool(self._values.get(key)) for key in keys)

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._values.get(key, default))


def _llama(name: str, c: _Config, **more: Any) -> ModelShape:
    heads = c.number("num_attention_heads")
    return ModelShape(
        name,
        layers=c.number("num_hidden_layers"),
        hidden=c.number("hidden_size"),
        heads=heads,
        kv_heads=c.number("num_key_value_heads", default=heads),
        ffn=c.number("intermediate_size"),
        vocab=c.number("vocab_size"),
        **{
            "head_width": c.number("head_dim", default=0),
            "tied_head": c.flag("tie_word_embeddings", default=False),
            **more,
        },
    )


def _qwen3(name: str, c: _Config) -> ModelShape:
    return _llama(name, c, query_key_norm=True)


def _mixtral(name: str, c: _Config) -> ModelShape:
    experts = Experts(
        c.number("num_local_experts"),
        c.number("num_experts_per_tok"),
        c.number("moe_intermediate_size", "intermediate_size"),
    )
    return _llama(name, c, experts=experts)


def _qwen3_moe(name: str, c: _Config) -> ModelShape:
    experts = Experts(
        c.number("num_experts"),
        c.number("num_experts_per_tok"),
        c.number("moe_intermediate_size"),
    )
    return _llama(name, c, query_key_norm=True, experts=experts)


def _deepseek(name: str, c: _Config) -> ModelShape:
    experts = Experts(
        c.number("n_routed_experts"),
        c.number("num_experts_per_tok"),
        c.number("moe_intermediate_size"),
        c.number("n_shared_experts", default=0),
        c.number("first_k_dense_replace", default=0),
    )
    rope = c.number("qk_rope_head_dim")
    latent = LatentAttention(
        c.number("q_lora_rank"), c.number("kv_lora_rank"), rope, c.number("v_head_dim")
    )
    width = c.number("qk_nope_head_dim") + rope
    return _llama(name, c, experts=experts, latent=latent, head_width=width)


def _gpt(name: str, c: _Config, scores: Scores = "fused") -> ModelShape:
    hidden = c.number("hidden_size", "n_embd")
    heads = c.number("num_heads", "num_attention_heads", "n_head")
    return ModelShape(  # OPT, GPT-2 and GPT-Neo
        name,
        layers=c.number("num_layers", "num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=c.number("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden),
        vocab=c.number("vocab_size"),
        max_positions=c.number("max_position_embeddings", "n_positions", default=2048),
        gated=False,
        rotary=False,
        tied_head=True,
        bias=True,
        scores=scores,
        dropout=c.positive("attention_dropout", "attn_pdrop", "resid_dropout", "resid_pdrop"),
    )


def _gpt_neo(name: str, c: _Config) -> ModelShape:
    return _gpt(name, c, scores="fp32")


_READERS: dict[str, Callable[[str, _Config], ModelShape]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek,
    "gpt_neo": _gpt_neo,
    "gpt2": _gpt,
    "opt": _gpt,
}
