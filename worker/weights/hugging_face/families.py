"""Families of models: the tensors of Hugging Face's files beside ours, in the order of its modules.

A row says which of our tensors lie in one of theirs, one after the other along their rows, and
whether theirs is transposed.  Rows whose tensors a model does not have (biases, norms of queries
and keys, a head of its own) do not count for it.
Source: the module definitions of `transformers`, whose order its shards follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


class Stack(NamedTuple):
    """Where the matrix of an expert is in a tensor that holds those of all experts.

    Source: the modules of `transformers` 5, whose names files have that were saved as they are
    (`save_original_format=False`).

    Attributes:
        name: of that tensor [experts, parts x rows, columns], within its block.
        part: which run of an expert's rows it is.
        parts: how many equal runs an expert's rows have.
    """

    name: str
    part: int
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tensor of a Hugging Face file.

    Attributes:
        theirs: its name, within its block if it is of a block.
        ours: attributes of our tensors in it; `embedding.` and `head.` say another layer.
        is_transposed: it is kept as [in, out] (GPT-2's Conv1D), ours are [out, in].
        is_of_expert: theirs is of expert `{}`, ours is the stack of all experts.
        is_fp32: it is written in fp32, whatever the precision of the others.
        also: another name that files may have for it; "" if there is none.
        stack: where files may hold the experts in one tensor.
    """

    theirs: str
    ours: tuple[str, ...]
    is_transposed: bool = False
    is_of_expert: bool = False
    is_fp32: bool = False
    also: str = ""
    stack: Stack | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The tensors of one family.

    Attributes:
        architecture: the class of `transformers` that loads it.
        prefix: of all names but the head's, which files of the bare model lack.
        blocks: what stands before the names of block `{}`, counted from 0.
        first: what comes before the blocks.
        block: of each block.
        last: what comes after the blocks.
        buffers: ends of names that old files hold and that are no weights.
        has_more_blocks: files may hold blocks behind the last one, which predict further tokens;
            they are left out, as `transformers` does.
    """

    architecture: str
    prefix: str
    blocks: str
    first: tuple[Row, ...]
    block: tuple[Row, ...]
    last: tuple[Row, ...]
    buffers: tuple[str, ...] = ()
    has_more_blocks: bool = False


def _linear(theirs: str, *ours: str, is_transposed: bool = False) -> tuple[Row, Row]:
    """Weight and bias of a linear layer or of a norm."""
    return (
        Row(theirs=f"{theirs}.weight", ours=ours, is_transposed=is_transposed),
        Row(theirs=f"{theirs}.bias", ours=tuple(f"{name}_bias" for name in ours)),
    )


_HEAD = Row(theirs="lm_head.weight", ours=("head.weight",))
_GPT_FIRST = (
    Row(theirs="transformer.wte.weight", ours=("embedding.weight",)),
    Row(theirs="transformer.wpe.weight", ours=("embedding.positions",)),
)
_GPT_LAST = (*_linear("transformer.ln_f", "head.norm"), _HEAD)

_GPT2 = Family(
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    blocks="transformer.h.{}.",
    first=_GPT_FIRST,
    block=(
        *_linear("ln_1", "norm1"),
        *_linear("attn.c_attn", "q", "k", "v", is_transposed=True),
        *_linear("attn.c_proj", "o", is_transposed=True),
        *_linear("ln_2", "norm2"),
        *_linear("mlp.c_fc", "up", is_transposed=True),
        *_linear("mlp.c_proj", "down", is_transposed=True),
    ),
    last=_GPT_LAST,
    buffers=(".attn.bias", ".attn.masked_bias"),
)

_GPT_NEO = Family(
    architecture="GPTNeoForCausalLM",
    prefix="transformer.",
    blocks="transformer.h.{}.",
    first=_GPT_FIRST,
    block=(
        *_linear("ln_1", "norm1"),
        *_linear("attn.attention.k_proj", "k"),
        *_linear("attn.attention.v_proj", "v"),
        *_linear("attn.attention.q_proj", "q"),
        *_linear("attn.attention.out_proj", "o"),
        *_linear("ln_2", "norm2"),
        *_linear("mlp.c_fc", "up"),
        *_linear("mlp.c_proj", "down"),
    ),
    last=_GPT_LAST,
    buffers=(".attn.attention.bias", ".attn.attention.masked_bias"),
)

_OPT = Family(
    architecture="OPTForCausalLM",
    prefix="model.",
    blocks="model.decoder.layers.{}.",
    first=(
        Row(theirs="model.decoder.embed_tokens.weight", ours=("embedding.weight",)),
        Row(theirs="model.decoder.embed_positions.weight", ours=("embedding.positions",)),
        *_linear("model.decoder.final_layer_norm", "head.norm"),
    ),
    block=(
        *_linear("self_attn.k_proj", "k"),
        *_linear("self_attn.v_proj", "v"),
        *_linear("self_attn.q_proj", "q"),
        *_linear("self_attn.out_proj", "o"),
        *_linear("self_attn_layer_norm", "norm1"),
        *_linear("fc1", "up"),
        *_linear("fc2", "down"),
        *_linear("final_layer_norm", "norm2"),
    ),
    last=(_HEAD,),
)


def _experts(router: str, experts: str, gate: str, up: str, down: str) -> tuple[Row, ...]:
    """The mixture of a block: its router, then the experts one after the other."""

    def of_expert(theirs: str, ours: str, stack: Stack) -> Row:
        name = f"{experts}.{{}}.{theirs}.weight"
        return Row(theirs=name, ours=(ours,), is_of_expert=True, stack=stack)

    stacks = [Stack("mlp.experts.gate_up_proj", part, 2) for part in range(2)]
    also = "" if router == _ROUTER else f"{_ROUTER}.weight"
    return (
        Row(theirs=f"{router}.weight", ours=("router",), also=also),
        of_expert(gate, "experts_gate", stacks[0]),
        of_expert(up, "experts_up", stacks[1]),
        of_expert(down, "experts_down", Stack("mlp.experts.down_proj", 0, 1)),
    )


_ROUTER = "mlp.gate"
_MIXTRAL_EXPERTS = _experts(
    "block_sparse_moe.gate", "block_sparse_moe.experts", gate="w1", up="w3", down="w2"
)
_QWEN_EXPERTS = _experts(_ROUTER, "mlp.experts", "gate_proj", "up_proj", "down_proj")


_HEADS = (
    *_linear("self_attn.q_proj", "q"),
    *_linear("self_attn.k_proj", "k"),
    *_linear("self_attn.v_proj", "v"),
    *_linear("self_attn.o_proj", "o"),
    Row(theirs="self_attn.q_norm.weight", ours=("q_norm",)),
    Row(theirs="self_attn.k_norm.weight", ours=("k_norm",)),
)
_LATENT_HEADS = (
    Row(theirs="self_attn.q_proj.weight", ours=("q",)),
    Row(theirs="self_attn.q_a_proj.weight", ours=("q_down",)),
    Row(theirs="self_attn.q_a_layernorm.weight", ours=("q_norm",)),
    Row(theirs="self_attn.q_b_proj.weight", ours=("q_up",)),
    Row(theirs="self_attn.kv_a_proj_with_mqa.weight", ours=("kv_down",)),
    Row(theirs="self_attn.kv_a_layernorm.weight", ours=("kv_norm",)),
    Row(theirs="self_attn.kv_b_proj.weight", ours=("kv_up",)),
    Row(theirs="self_attn.o_proj.weight", ours=("o",)),
)
_DEEPSEEK_EXPERTS = (
    *(replace(row, is_fp32=row.ours == ("router",)) for row in _QWEN_EXPERTS),
    Row(theirs="mlp.gate.e_score_correction_bias", ours=("router_bias",), is_fp32=True),
    Row(theirs="mlp.shared_experts.gate_proj.weight", ours=("shared_gate",)),
    Row(theirs="mlp.shared_experts.up_proj.weight", ours=("shared_up",)),
    Row(theirs="mlp.shared_experts.down_proj.weight", ours=("shared_down",)),
)


def _llama(
    architecture: str,
    experts: tuple[Row, ...] = (),
    heads: tuple[Row, ...] = _HEADS,
    *,
    has_more_blocks: bool = False,
) -> Family:
    return Family(
        architecture=architecture,
        prefix="model.",
        blocks="model.layers.{}.",
        first=(Row(theirs="model.embed_tokens.weight", ours=("embedding.weight",)),),
        block=(
            *heads,
            *_linear("mlp.gate_proj", "gate"),
            *_linear("mlp.up_proj", "up"),
            *_linear("mlp.down_proj", "down"),
            *experts,
            Row(theirs="input_layernorm.weight", ours=("norm1",)),
            Row(theirs="post_attention_layernorm.weight", ours=("norm2",)),
        ),
        last=(Row(theirs="model.norm.weight", ours=("head.norm",)), _HEAD),
        buffers=(".rotary_emb.inv_freq",),
        has_more_blocks=has_more_blocks,
    )


FAMILIES: Mapping[str, Family] = {  # by `model_type` of config.json
    "gpt2": _GPT2,
    "gpt_neo": _GPT_NEO,
    "opt": _OPT,
    "llama": _llama("LlamaForCausalLM"),
    "mistral": _llama("MistralForCausalLM"),
    "qwen2": _llama("Qwen2ForCausalLM"),
    "qwen3": _llama("Qwen3ForCausalLM"),
    "mixtral": _llama("MixtralForCausalLM", _MIXTRAL_EXPERTS),
    "qwen3_moe": _llama("Qwen3MoeForCausalLM", _QWEN_EXPERTS),
    "deepseek_v2": _llama("DeepseekV2ForCausalLM", _DEEPSEEK_EXPERTS, _LATENT_HEADS),
    "deepseek_v3": _llama(
        "DeepseekV3ForCausalLM", _DEEPSEEK_EXPERTS, _LATENT_HEADS, has_more_blocks=True
    ),
}
