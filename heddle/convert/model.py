"""The model that Megatron's arguments describe, as the config.json of a Hugging Face family.

Two kinds of layers cover them: RMS norm, SwiGLU and rotary positions are LLaMA's (with biases of
q, k and v Qwen2's, with norms of q and k Qwen3's, with experts see `heddle.convert.experts`, with
latent attention `heddle.convert.latent_attention`);
LayerNorm, GELU, biases and learned positions are GPT-2's.
Invariant: what none of them is, is refused by name.
Source: megatron/arguments.py for the values that are not said.
"""

from __future__ import annotations

from typing import Any

from heddle.convert.experts import refuse_routing, with_experts
from heddle.convert.latent_attention import with_latent_attention
from heddle.convert.refusals import Rules, refuse_others
from heddle.convert.words import Words
from heddle_operator.apis.errors import InvalidArguments
from planner.model.shape import LARGEST, MOST_LAYERS

GPT2_VOCABULARY = 50257
_ASKED_BY = {
    "rotary positions": "--position-embedding-type rope",
    "RMS norm": "--normalization RMSNorm",
    "SwiGLU": "--swiglu",
    "no biases": "--disable-bias-linear",
}
_OF_OTHERS = (
    "--num-query-groups",
    "--num-key-value-heads",
    "--qk-layernorm",
    "--kv-channels",
    "--num-experts",
    "--multi-latent-attention",
)
_ROTARY: Rules = {
    "--rotary-percent": (1, "Heddle rotates whole heads"),
    "--rotary-interleaved": (None, "it rotates other pairs than these families do"),
}
_TOKENIZER = "--vocab-size is not said and follows from a tokenizer; say --vocab-size N"


def config_of(words: Words) -> dict[str, Any]:
    """The configuration.

    Raises:
        InvalidArguments: a size is missing, or the layers are of none of the families.
    """
    positions = words.text("--position-embedding-type") or "absolute"
    if positions not in ("rope", "absolute", "learned_absolute"):
        raise InvalidArguments(
            f"--position-embedding-type is {positions}; Heddle has rope and learned_absolute",
            field="--position-embedding-type",
            code="Unsupported",
        )
    if words.has("--embed-layernorm"):
        raise InvalidArguments(
            "--embed-layernorm asks for a norm that no family of Heddle has",
            field="--embed-layernorm",
            code="Unsupported",
        )
    is_rotary = words.has("--use-rotary-position-embeddings") or positions == "rope"
    is_rms = (words.text("--normalization") or "LayerNorm").lower() == "rmsnorm"
    has_bias = not words.has("--disable-bias-linear")
    said = {
        "rotary positions": is_rotary,
        "RMS norm": is_rms,
        "SwiGLU": words.has("--swiglu"),
        "no biases": not has_bias,
    }
    if all(said.values()):
        refuse_others(words, _ROTARY)
        refuse_routing(words)
        complete = with_latent_attention if words.has("--multi-latent-attention") else with_experts
        return complete(words, _llama(words))
    if not any(said.values()):
        return _gpt2(words)
    yes = ", ".join(name for name, is_so in said.items() if is_so)
    no = ", ".join(name for name, is_so in said.items() if not is_so)
    missing = ", ".join(_ASKED_BY[name] for name, is_so in said.items() if not is_so)
    raise InvalidArguments(
        f"the model has {yes}, but not {no} ({missing}): Heddle has all of them (LLaMA, Mistral, "
        "Qwen) or none (GPT-2); a model of your own is spec.model.path with its config.json",
        code="Unsupported",
    )


def _size(words: Words, name: str, most: int = LARGEST) -> int:
    found = words.count(name)
    if found is None:
        raise InvalidArguments(
            f"{name} is missing; the model's shape needs it", field=name, code="Missing"
        )
    if not 1 <= found <= most:
        raise InvalidArguments(
            f"{name} is {found}; it must be from 1 to {most:,}", field=name, code="OutOfRange"
        )
    return found


def _groups(words: Words, heads: int) -> int:
    """Heads of keys and values; Megatron counts its groups, 1 by default, only where asked to."""
    stated = words.count("--num-query-groups")
    if words.has("--group-query-attention"):
        return stated or words.count("--num-key-value-heads") or 1
    if stated is not None:
        raise InvalidArguments(
            f"--num-query-groups is {stated} without --group-query-attention, and Megatron then "
            "trains plain attention; give both or neither",
            field="--num-query-groups",
            code="Contradiction",
        )
    return words.count("--num-key-value-heads") or heads


def _llama(words: Words) -> dict[str, Any]:
    hidden, heads = _size(words, "--hidden-size"), _size(words, "--num-attention-heads")
    ffn = words.count("--ffn-hidden-size") or 4 * hidden * 2 // 3 // 64 * 64
    qwen3, qwen2 = words.has("--qk-layernorm"), words.has("--add-qkv-bias")
    if qwen3 and qwen2:
        raise InvalidArguments(
            "--qk-layernorm and --add-qkv-bias are of two families; leave one",
            field="--qk-layernorm",
            code="Unsupported",
        )
    family = "qwen3" if qwen3 else "qwen2" if qwen2 else "llama"
    for name in ("--hidden-dropout", "--attention-dropout"):
        if words.number(name, 0.1):
            raise InvalidArguments(
                f"{name} is {words.number(name, 0.1):g} (Megatron's default is 0.1); models "
                "with rotary positions train without dropout here, give 0",
                field=name,
                code="Unsupported",
            )
    vocab = words.count("--vocab-size")
    if vocab is None:
        raise InvalidArguments(_TOKENIZER, code="Missing")
    config: dict[str, Any] = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "max_position_embeddings": words.count("--max-position-embeddings")
        or _size(words, "--seq-length"),
        "num_attention_heads": heads,
        "num_hidden_layers": _size(words, "--num-layers", MOST_LAYERS),
        "num_key_value_heads": _groups(words, heads),
        "rms_norm_eps": words.number("--norm-epsilon") or words.number("--layernorm-epsilon", 1e-5),
        "rope_theta": words.number("--rotary-base") or words.number("--rope-theta", 10000.0),
        "tie_word_embeddings": not words.has("--untie-embeddings-and-output-weights"),
        "vocab_size": vocab,
    }
    width = words.count("--kv-channels")
    if width is not None or qwen3:
        config["head_dim"] = width or hidden // heads
    return config


def _gpt2(words: Words) -> dict[str, Any]:
    hidden = _size(words, "--hidden-size")
    for name in _OF_OTHERS:
        if words.has(name):
            raise InvalidArguments(
                f"{name} does not go with GPT-2's layers; leave it out",
                field=name,
                code="Unsupported",
            )
    if words.has("--untie-embeddings-and-output-weights"):
        raise InvalidArguments(
            "--untie-embeddings-and-output-weights does not go with GPT-2's layers; leave it out",
            field="--untie-embeddings-and-output-weights",
            code="Unsupported",
        )
    vocab = words.count("--vocab-size")
    if vocab is None and words.text("--tokenizer-type") != "GPT2BPETokenizer":
        raise InvalidArguments(_TOKENIZER, code="Missing")
    dropout = words.number("--hidden-dropout", 0.1)
    is_exact = words.has("--no-bias-gelu-fusion") and not words.has("--openai-gelu")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu" if is_exact else "gelu_new",
        "attn_pdrop": words.number("--attention-dropout", 0.1),
        "embd_pdrop": dropout,
        "resid_pdrop": dropout,
        "layer_norm_epsilon": words.number("--norm-epsilon")
        or words.number("--layernorm-epsilon", 1e-5),
        "n_embd": hidden,
        "n_head": _size(words, "--num-attention-heads"),
        "n_inner": words.count("--ffn-hidden-size") or 4 * hidden,
        "n_layer": _size(words, "--num-layers", MOST_LAYERS),
        "n_positions": words.count("--max-position-embeddings")
        or words.count("--max-absolute-position-embeddings")
        or _size(words, "--seq-length"),
        "vocab_size": vocab or GPT2_VOCABULARY,
    }
