"""The families of models, read from their Hugging Face configurations.

Where a key is absent its value is that of the family's configuration class.
Source: the configuration and model classes of `transformers`, of its version 4 (`rope_theta`,
`rope_scaling`) and of its version 5 (`rope_parameters`).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.errors import InvalidWorkload
from planner.model.arithmetic import (
    INITIAL_DEVIATION,
    MOST_DEVIATION,
    Arithmetic,
    Rotary,
    RotaryScaling,
)
from planner.model.configuration import Configuration
from planner.model.shape import LARGEST, ModelShape

_LLAMA3_KEYS = {
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "original_max_position_embeddings": "original_positions",
}
_YARN_KEYS = {
    "beta_fast": "fast_turns",
    "beta_slow": "slow_turns",
    "mscale": "magnitude",
    "mscale_all_dim": "score_magnitude",
}
_OPT_OFFSET = 2  # the row of the first position
_OPT_PADDING = 1  # the token that pads
_MOST_DROPPED = 0.99


def _llama(name: str, c: Configuration) -> ModelShape:
    biased = c.flag("attention_bias", default=False)
    return decoder(
        name, c, qkv_bias=biased, o_bias=biased, ffn_bias=c.flag("mlp_bias", default=False)
    )


def _mistral(name: str, c: Configuration) -> ModelShape:
    default = 4096 if c.is_absent("sliding_window") else 0
    width = c.number("sliding_window", default=default)
    layers = c.number("num_hidden_layers")
    windows = windows_of(c, [width] * layers, width)
    return decoder(name, c, windows=windows, absent_kv_heads=8)


def _qwen2(name: str, c: Configuration) -> ModelShape:
    return decoder(name, c, windows=_qwen_windows(c), absent_kv_heads=32, qkv_bias=True)


def _qwen3(name: str, c: Configuration) -> ModelShape:
    biased = c.flag("attention_bias", default=False)
    return decoder(
        name,
        c,
        windows=_qwen_windows(c),
        absent_kv_heads=32,
        absent_head_width=128,
        qkv_bias=biased,
        o_bias=biased,
        query_key_norm=True,
    )


def _gpt2(name: str, c: Configuration) -> ModelShape:
    c.require("scale_attn_by_inverse_layer_idx", wanted=False)
    c.require("reorder_and_upcast_attn", wanted=False)
    c.require("add_cross_attention", wanted=False)
    return _gpt(
        name,
        c,
        Arithmetic(
            norm_epsilon=c.real("layer_norm_epsilon", 1e-5),
            activation=c.activation("activation_function", "gelu_new"),
            scale_scores=c.flag("scale_attn_weights", default=True),
            initial_deviation=_initial_deviation(c),
            embedding_dropout=c.real("embd_pdrop", 0.1, _MOST_DROPPED),
            attention_dropout=c.real("attn_pdrop", 0.1, _MOST_DROPPED),
            residual_dropout=c.real("resid_pdrop", 0.1, _MOST_DROPPED),
        ),
        positions=c.number("n_positions", "max_position_embeddings", default=1024),
        qkv_bias=True,
    )


def _opt(name: str, c: Configuration) -> ModelShape:
    for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        c.require(key, wanted=True)
    c.require("_remove_final_layer_norm", wanted=False)
    c.require("layerdrop", wanted=0.0)
    c.require("word_embed_proj_dim", wanted=c.number("hidden_size"))
    c.get("activation_dropout")  # no version of the model's code applies it
    return _gpt(
        name,
        c,
        Arithmetic(
            norm_epsilon=1e-5,
            activation=c.activation("activation_function", "relu"),
            position_offset=_OPT_OFFSET,
            initial_deviation=_initial_deviation(c),
            padding_token=_padding_token(c, _OPT_PADDING),
            attention_dropout=c.real("attention_dropout", 0.0, _MOST_DROPPED),
            residual_dropout=c.real("dropout", 0.1, _MOST_DROPPED),
        ),
        positions=c.number("max_position_embeddings", default=2048) + _OPT_OFFSET,
        qkv_bias=True,
    )


def _gpt_neo(name: str, c: Configuration) -> ModelShape:
    layers = c.number("num_layers")
    width = c.number("window_size", default=256)
    kinds = c.get("attention_layers")
    stated = c.get("attention_types", [[["global", "local"], layers // 2]])
    if kinds is None:
        try:
            kinds = [kind for pattern, times in stated for kind in pattern * times]
        except (TypeError, ValueError):
            kinds = []
    known = {"global": 0, "local": width}
    windows: tuple[int, ...] = (0,)
    is_list = isinstance(kinds, list) and len(kinds) == layers
    if is_list and all(isinstance(kind, str) and kind in known for kind in kinds):
        windows = shortest_cycle([known[kind] for kind in kinds])
    else:
        c.lacking.append(f"attention_types {reprlib.repr(stated)}")
    return _gpt(
        name,
        c,
        Arithmetic(
            norm_epsilon=c.real("layer_norm_epsilon", 1e-5),
            activation=c.activation("activation_function", "gelu_new"),
            windows=windows,
            scale_scores=False,
            initial_deviation=_initial_deviation(c),
            embedding_dropout=c.real("embed_dropout", 0.0, _MOST_DROPPED),
            attention_dropout=c.real("attention_dropout", 0.0, _MOST_DROPPED),
            residual_dropout=c.real("resid_dropout", 0.0, _MOST_DROPPED),
        ),
        positions=c.number("max_position_embeddings", default=2048),
        scores="fp32",
    )


READERS: Mapping[str, Callable[[str, Configuration], ModelShape]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gpt_neo": _gpt_neo,
    "gpt2": _gpt2,
    "opt": _opt,
}


def decoder(
    name: str,
    c: Configuration,
    *,
    windows: tuple[int, ...] = (0,),
    norm_epsilon: float = 1e-6,
    rotary_base: float = 10000.0,
    absent_kv_heads: int = 0,
    absent_head_width: int = 0,
    **facts: Any,
) -> ModelShape:
    """A decoder with RMS norm, rotary positions and a gate.

    Args:
        name: of the model.
        c: its configuration.
        windows: of attention, see `Arithmetic`.
        norm_epsilon: where the configuration says none.
        rotary_base: likewise.
        absent_kv_heads: heads of keys and values where the key is absent; 0, and where it is null:
            as many as heads.
        absent_head_width: width of a head likewise; 0: by hidden and heads.
        facts: of the family, see `ModelShape`.
    """
    heads = c.number("num_attention_heads")
    dropped = c.real("attention_dropout", 0.0, _MOST_DROPPED)
    c.number("max_position_embeddings", default=0)  # rotary positions have no end
    known: dict[str, Any] = {
        "layers": c.number("num_hidden_layers"),
        "hidden": c.number("hidden_size"),
        "heads": heads,
        "kv_heads": c.number(
            "num_key_value_heads",
            default=(c.is_absent("num_key_value_heads") and absent_kv_heads) or heads,
        ),
        "ffn": c.number("intermediate_size"),
        "vocab": c.number("vocab_size"),
        "head_width": c.number(
            "head_dim", default=absent_head_width if c.is_absent("head_dim") else 0
        ),
        "tied_head": c.flag("tie_word_embeddings", default=False),
        "dropout": dropped > 0,
        "scores": "eager" if dropped > 0 else "flash",  # which are dropped one by one
    }
    if any(kind not in ("full_attention", "sliding_attention") for kind in c.list("layer_types")):
        c.lacking.append(f"layer_types {reprlib.repr(c.get('layer_types'))}")
    arithmetic = Arithmetic(
        norm_epsilon=c.real("rms_norm_eps", norm_epsilon),
        activation=c.activation("hidden_act", "silu"),
        rotary=_rotary(c, rotary_base),
        windows=windows,
        attention_dropout=dropped,
        padding_token=_padding_token(c),
        initial_deviation=_initial_deviation(c),
    )
    return _finished(name, c, arithmetic, {**known, **facts})


def _gpt(
    name: str, c: Configuration, arithmetic: Arithmetic, positions: int, **facts: Any
) -> ModelShape:
    """A decoder with LayerNorm, learned positions and biases."""
    c.get("pad_token_id")  # OPT's embedding alone knows it
    hidden = c.number("hidden_size", "n_embd")
    heads = c.number("num_heads", "num_attention_heads", "n_head")
    known: dict[str, Any] = {
        "layers": c.number("num_layers", "num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "ffn": c.number("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden),
        "vocab": c.number("vocab_size"),
        "max_positions": positions,
        "gated": False,
        "rotary": False,
        "tied_head": c.flag("tie_word_embeddings", default=True),
        "bias": True,
        "scores": "fused",
        "dropout": arithmetic.has_dropout,
    }
    return _finished(name, c, arithmetic, {**known, **facts})


def _finished(
    name: str, c: Configuration, arithmetic: Arithmetic, facts: Mapping[str, Any]
) -> ModelShape:
    """The model, with all that it lacks."""
    quantised = c.get("quantization_config")
    if isinstance(quantised, Mapping) and quantised.get("quant_method") == "fp8":
        c.lacking.append("weights in fp8 (convert the folder to bf16, without quantization_config)")
    else:
        c.require("quantization_config", wanted=None)
    return ModelShape(name=name, arithmetic=replace(arithmetic, lacking=c.all_lacking()), **facts)


def _initial_deviation(c: Configuration) -> float:
    """Under the name of most families, or OPT's."""
    stated = c.real("init_std", INITIAL_DEVIATION, MOST_DEVIATION)
    return c.real("initializer_range", stated, MOST_DEVIATION)


def _padding_token(c: Configuration, default: int | None = None) -> int | None:
    """The token whose row learns nothing as an input; torch counts one below 0 from the end.

    Args:
        c: the configuration.
        default: where the key is absent; null says that there is none.
    """
    token, vocab = c.token("pad_token_id", default), c.number("vocab_size")
    if token is None:
        return None
    if not -vocab <= token < vocab:
        c.lacking.append(f"the key 'pad_token_id' ({token}) of a vocabulary of {vocab}")
        return None
    return token % vocab


def _rotary(c: Configuration, base: float) -> Rotary:
    """Base and scaling, under the names of either version; `base` where none is said."""
    base = c.real("rope_theta", base, LARGEST)
    asked, stretched = c.get("rope_parameters", {}), c.get("rope_scaling", {})
    # where both are there version 5 takes the older one
    settings = stretched or asked
    if not isinstance(settings, Mapping) or any(isinstance(v, Mapping) for v in settings.values()):
        c.lacking.append("rotary positions that differ from block to block")
        return Rotary(base)
    try:
        found = _rotary_of(c, dict(settings), base)
        if all(0 < number < math.inf for number in _positive(found)):
            return found
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise InvalidWorkload(
        f"rotary positions {reprlib.repr(settings)} cannot be read; base, factor, betas and "
        "original positions are numbers above 0, and the base of yarn is above 1",
        field="rope_parameters",
        code="Unreadable",
    )


def _positive(rotary: Rotary) -> tuple[float, ...]:
    """Numbers without which the frequencies are none: all are above 0."""
    scaling = rotary.scaling
    if scaling is None:
        return (rotary.base,)
    base = rotary.base - 1 if scaling.kind == "yarn" else rotary.base  # its logarithm divides
    turns = scaling.fast_turns, scaling.slow_turns
    return base, scaling.factor, *turns, scaling.original_positions


def _rotary_of(c: Configuration, settings: dict[str, Any], base: float) -> Rotary:
    base = float(settings.pop("rope_theta", base))
    kind = settings.pop("type", "default")
    kind = settings.pop("rope_type", kind)
    if settings.pop("partial_rotary_factor", 1.0) != 1.0:
        c.lacking.append("partial rotary positions")
    scaling = None
    if kind == "linear":
        scaling = RotaryScaling(kind="linear", factor=float(settings.pop("factor")))
        settings.pop("original_max_position_embeddings", None)
    elif kind == "llama3":
        known = {new: settings.pop(old) for old, new in _LLAMA3_KEYS.items() if old in settings}
        scaling = RotaryScaling(kind="llama3", factor=float(settings.pop("factor")), **known)
    elif kind == "yarn":
        found = {new: settings.pop(old, None) for old, new in _YARN_KEYS.items()}
        known = {name: float(value) for name, value in found.items() if value}
        first = settings.pop("original_max_position_embeddings", None)
        if first is None:
            c.lacking.append("yarn without original_max_position_embeddings")
        scaling = RotaryScaling(
            kind="yarn",
            factor=float(settings.pop("factor")),
            original_positions=int(first or 1),
            **known,
        )
        if settings.pop("truncate", True) is not True:
            c.lacking.append("bounds of yarn that are not rounded")
    elif kind != "default":
        c.lacking.append(f"rotary scaling {kind!r}")
        settings = {}
    c.lacking += [f"the key {key!r} of rotary scaling" for key, value in settings.items() if value]
    return Rotary(base, scaling)


def _qwen_windows(c: Configuration) -> tuple[int, ...]:
    """Windows of Qwen's models: only if they are asked for, from some block on."""
    layers, width = c.number("num_hidden_layers"), c.number("sliding_window", default=0)
    first = c.number("max_window_layers", default=28)
    if not c.flag("use_sliding_window", default=False):
        return (0,)
    return windows_of(c, [width if block >= first else 0 for block in range(layers)], width)


def windows_of(c: Configuration, default: Sequence[int], width: int) -> tuple[int, ...]:
    """The attention window of each block: as `layer_types` says, if it is there."""
    kinds = c.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != len(default):
        return shortest_cycle(default)
    return shortest_cycle([width if kind == "sliding_attention" else 0 for kind in kinds])


def shortest_cycle(windows: Sequence[int]) -> tuple[int, ...]:
    """The shortest cycle that gives these windows."""
    length = next(
        n
        for n in range(1, len(windows) + 1)
        if all(window == windows[i % n] for i, window in enumerate(windows))
    )
    return tuple(windows[:length])
