"""The mixture of experts that Megatron's arguments describe, as keys of a Hugging Face family.

With norms of q and k the blocks are Qwen3-MoE's, without them Mixtral's; those with latent
attention are in `heddle.convert.latent_attention`.  Megatron's weights of a
token's experts are a softmax over the chosen ones, which is one over all of them, renormalised.
Its auxiliary loss is summed over blocks and divides a visit's share by k; ours is the mean over
blocks, as `transformers` has it, and does not divide.  So the coefficient is multiplied by blocks
and divided by k.
Invariant: what would train another model is refused by name.
Source: megatron/training/arguments.py and megatron/core/transformer/moe (router, moe_utils).
"""

from __future__ import annotations

import re
from typing import Any

from heddle.convert.refusals import Rules, refuse_others
from heddle.convert.words import Words
from heddle_operator.apis.errors import InvalidArguments

_OF_NO_FAMILY: Rules = {
    "--moe-z-loss-coeff": (0, "Heddle has no z loss of the router"),
    "--moe-input-jitter-eps": (0, "Heddle's router sees its input without noise"),
    "--moe-expert-capacity-factor": (None, "Heddle drops no token"),
    "--moe-router-force-load-balancing": (None, "Heddle's router chooses by its own scores"),
    "--moe-apply-probs-on-input": (None, "weights multiply what experts give"),
    "--moe-shared-expert-gate": (None, "shared experts have no gate here"),
    "--mtp-num-layers": (0, "Heddle has no MTP layers, whose loss trains the other blocks too"),
}
_LATENT = "without --multi-latent-attention it means nothing"
_OF_DEEPSEEK: Rules = {
    "--moe-shared-expert-intermediate-size": (None, "these families have no shared experts"),
    "--moe-router-score-function": ("softmax", "the scores of these families are a softmax"),
    "--moe-router-num-groups": (None, "these families choose among all experts"),
    "--moe-router-group-topk": (None, "these families choose among all experts"),
    "--moe-router-topk-scaling-factor": (1, "these families do not scale what experts give"),
    "--moe-router-enable-expert-bias": (None, "routers of these families have no bias"),
    "--rotary-scaling-factor": (1, _LATENT),
    **dict.fromkeys(("--q-lora-rank", "--kv-lora-rank"), (None, _LATENT)),
    **dict.fromkeys(("--qk-head-dim", "--qk-pos-emb-head-dim"), (None, _LATENT)),
    **dict.fromkeys(("--v-head-dim", "--mscale", "--mscale-all-dim"), (None, _LATENT)),
    **dict.fromkeys(("--beta-fast", "--beta-slow"), (None, _LATENT)),
    "--original-max-position-embeddings": (None, _LATENT),
    "--rope-type": ("rope", _LATENT),
}
_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d+))?")


def refuse_routing(words: Words) -> None:
    """Refuse what no router of Heddle does, whatever the family.

    Raises:
        InvalidArguments: the first such argument.
    """
    refuse_others(words, _OF_NO_FAMILY)


def with_experts(words: Words, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a dense model, with experts where `--num-experts` asks for them.

    Raises:
        InvalidArguments: they are of none of the families.
    """
    refuse_others(words, _OF_DEEPSEEK)
    count = words.count("--num-experts")
    if count is None:
        return config
    layers, ffn = config["num_hidden_layers"], config["intermediate_size"]
    dense = dense_blocks(words, layers)
    per_token = words.count("--moe-router-topk", 2) or 0
    renormalises = not words.has("--moe-router-pre-softmax")
    width = words.count("--moe-ffn-hidden-size", ffn)
    weight = auxiliary_weight(words) * (layers - dense) / max(1, per_token)
    config |= {
        "num_local_experts": count,
        "num_experts_per_tok": per_token,
        "output_router_logits": weight > 0,
        "router_aux_loss_coef": weight,
    }
    if config["model_type"] == "qwen3":
        return config | {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": width,
            "mlp_only_layers": list(range(dense)),
            "norm_topk_prob": renormalises,
        }
    field = (
        "--add-qkv-bias" if words.has("--add-qkv-bias")
        else "--moe-router-pre-softmax" if not renormalises
        else "--moe-layer-freq" if dense
        else None
    )  # fmt: skip
    if field is not None:
        raise InvalidArguments(
            f"{field} does not go with experts without --qk-layernorm, which are Mixtral's; "
            "leave it out, or add --qk-layernorm for Qwen3-MoE",
            field=field,
            code="Unsupported",
        )
    return config | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": width,
    }


def auxiliary_weight(words: Words) -> float:
    """Megatron's coefficient of the loss that each sample has of its own."""
    name = "--moe-router-load-balancing-type"
    kind, weight = words.text(name, "aux_loss"), words.number("--moe-aux-loss-coeff", 0.0) or 0.0
    if kind == "sinkhorn":
        raise InvalidArguments(
            f"{name} is sinkhorn; Heddle chooses experts by their scores, give seq_aux_loss or "
            "none",
            field=name,
            code="Unsupported",
        )
    if weight and kind not in ("seq_aux_loss", "none"):
        raise InvalidArguments(
            f"{name} is {kind}, a loss that depends on micro-batches; each sample has its own "
            "here, give seq_aux_loss",
            field=name,
            code="Unsupported",
        )
    return 0.0 if kind == "none" else weight


def dense_blocks(words: Words, layers: int) -> int:
    """How many first blocks have no experts."""
    name = "--moe-layer-freq"
    text = (words.text(name, "1") or "1").replace(" ", "")
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    terms = [_TERM.fullmatch(term) for term in inner.split("+")]
    if text.isdigit() and int(text) > 0:
        has = [index % int(text) == 0 for index in range(layers)]
    elif all(terms):
        found = [(match[1].split(","), int(match[2] or 1)) for match in terms if match]
        has = [one == "1" for ones, times in found for one in ones * min(times, layers + 1)]
    else:
        raise InvalidArguments(
            f"{name} is {text!r}; give a number, or a list such as ([0]*1+[1]*23)",
            field=name,
            code="Malformed",
        )
    if len(has) != layers:
        raise InvalidArguments(
            f"{name} is of {len(has)} blocks, the model has {layers}; make them agree",
            field=name,
            code="Contradiction",
        )
    dense = has.index(True) if True in has else layers
    if dense == layers or not all(has[dense:]):
        raise InvalidArguments(
            f"{name} {text} has dense blocks behind one with experts; Heddle trains dense blocks "
            "before them only",
            field=name,
            code="Unsupported",
        )
    return dense
