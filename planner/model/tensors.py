"""The named tensors of a model, layer by layer, and the dimension that tensor parallelism cuts.

q, k, v and gate, up are tensors of their own: a fused tensor would make a TP slice a strange set of
rows, and initial weights would depend on the plan.
A head that is tied to the embedding has no weight of its own: the embedding's is one tensor, which
whoever has either layer holds.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from planner.model.shape import ModelShape


class Tensor(NamedTuple):
    """One parameter of the model.

    Attributes:
        name: "<layer index>.<attribute>"; layer 0 is the embedding, L + 1 the head.
        shape: of the whole tensor, whatever the plan.
        dim: the dimension that TP cuts; None if every rank of a TP group holds the whole.
        experts: how many routed experts are stacked along dimension 0; 0: it is no such stack.
        padding: rows at its end that no token has; they are zero and nothing trains them.
        is_counted: it has no gradient; counts of a step change it.  It is fp32 in any precision,
            its moments stay zero, and every holder has all of it.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None
    experts: int = 0
    padding: int = 0
    is_counted: bool = False

    @property
    def layer(self) -> int:
        """Index in the layer list."""
        return int(self.name.split(".")[0])

    @property
    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def row_dim(self) -> int:
        """The dimension whose indices are the tensor's rows: what TP cuts, else the first."""
        return self.dim or 0

    @property
    def rows(self) -> int:
        """How many rows it has; of a stack of experts, each of them."""
        return self.shape[self.row_dim]

    @property
    def row_numel(self) -> int:
        """Elements of one row (of one expert)."""
        return self.numel // (self.rows * max(1, self.experts))


Rows = dict[str, tuple[tuple[int, ...], int | None]]  # name: (shape, dimension that TP cuts)


@cache
def layer_tensors(model: ModelShape, layer: int) -> tuple[Tensor, ...]:
    """The tensors of one layer (0 = embedding, 1..L = blocks, L + 1 = head), in canonical order.

    A tied head's weight is the embedding's; see `held_tensors`.
    """
    kind = model.kind(layer)
    if model.own is not None:
        own = {"embedding": model.own.embedding, "head": model.own.head}.get(kind, model.own.block)
        return tuple(Tensor(f"{layer}.{one.name}", one.shape, one.dim) for one in own)
    h, v = model.hidden, model.padded_vocab
    if kind == "embedding":
        rows: Rows = {"weight": ((v, h), 0)}
        if model.max_positions:
            rows["positions"] = ((model.max_positions, h), None)
    elif kind == "head":
        rows = _norm(model, "norm")
        if not model.tied_head:
            rows["weight"] = ((v, h), 0)
    else:
        rows = {**_norm(model, "norm1"), **_attention(model), **_norm(model, "norm2")}
        rows |= _experts(model) if kind == "moe_block" else _feed_forward(model)
    return tuple(
        Tensor(
            f"{layer}.{name}",
            shape,
            dim,
            shape[0] if name.startswith("experts_") else 0,
            v - model.vocab if name == "weight" else 0,
            name == "router_bias",
        )
        for name, (shape, dim) in rows.items()
    )


@cache
def held_tensors(model: ModelShape, layers: range) -> tuple[Tensor, ...]:
    """The tensors that a stage with these layers holds, each once, in canonical order."""
    own = tuple(tensor for layer in layers for tensor in layer_tensors(model, layer))
    if holds_tied(model, layers) and 0 not in layers:
        return (layer_tensors(model, 0)[0], *own)
    return own


def holds_tied(model: ModelShape, layers: range) -> bool:
    """Whether a stage with these layers holds a weight that embedding and head share."""
    return model.tied_head and (0 in layers or model.layers + 1 in layers)


def _norm(model: ModelShape, name: str) -> Rows:
    rows: Rows = {name: ((model.hidden,), None)}
    if model.bias:
        rows[f"{name}_bias"] = ((model.hidden,), None)
    return rows


def _attention(model: ModelShape) -> Rows:
    h, width = model.hidden, model.heads * model.head_dim
    latent = model.latent
    if latent is not None:
        up = model.heads * (model.head_dim - latent.rope + latent.value)
        queries: Rows = {"q": ((width, h), 0)}
        if latent.query_rank:
            queries = {
                "q_down": ((latent.query_rank, h), None),
                "q_norm": ((latent.query_rank,), None),
                "q_up": ((width, latent.query_rank), 0),
            }
        return {
            **queries,
            "kv_down": ((latent.kv_rank + latent.rope, h), None),
            "kv_norm": ((latent.kv_rank,), None),
            "kv_up": ((up, latent.kv_rank), 0),
            "o": ((h, model.heads * latent.value), 1),
        }
    kv = model.kv_heads * model.head_dim
    rows: Rows = {"q": ((width, h), 0), "k": ((kv, h), 0), "v": ((kv, h), 0), "o": ((h, width), 1)}
    if model.query_key_norm:
        rows |= dict.fromkeys(("q_norm", "k_norm"), ((model.head_dim,), None))
    if model.qkv_bias:
        rows |= {"q_bias": ((width,), 0), "k_bias": ((kv,), 0), "v_bias": ((kv,), 0)}
    if model.bias or model.o_bias:
        rows["o_bias"] = ((h,), None)
    return rows


def _feed_forward(model: ModelShape) -> Rows:
    h, f = model.hidden, model.ffn
    rows: Rows = {"gate": ((f, h), 0)} if model.gated else {}
    rows |= {"up": ((f, h), 0), "down": ((h, f), 1)}
    if model.bias or model.ffn_bias:
        rows |= {"gate_bias": ((f,), 0)} if model.gated else {}
        rows |= {"up_bias": ((f,), 0), "down_bias": ((h,), None)}
    return rows


def _experts(model: ModelShape) -> Rows:
    """The experts of a block are stacked; TP cuts each of them, unless the plan tiles otherwise."""
    experts = model.experts
    assert experts is not None
    h, f, count = model.hidden, experts.ffn, experts.count
    rows: Rows = {
        "router": ((count, h), None),
        "experts_gate": ((count, f, h), 1),
        "experts_up": ((count, f, h), 1),
        "experts_down": ((count, h, f), 2),
    }
    if experts.routing.bias:
        rows["router_bias"] = ((count,), None)
    if experts.shared:
        wide = experts.shared * f
        rows |= {
            "shared_gate": ((wide, h), 0),
            "shared_up": ((wide, h), 0),
            "shared_down": ((h, wide), 1),
        }
    return rows


@cache
def model_tensors(model: ModelShape) -> tuple[Tensor, ...]:
    """All tensors of a model in canonical order."""
    return tuple(
        tensor for layer in range(model.layers + 2) for tensor in layer_tensors(model, layer)
    )


def shard_numel(tensor: Tensor, tp: int) -> int:
    """Elements that one rank of a TP group holds."""
    return tensor.numel if tensor.dim is None else tensor.numel // tp


@cache
def layer_numel(model: ModelShape, layer: int, tp: int = 1) -> int:
    """Elements that one rank of a TP group holds for a layer; a tied head's weight is one of them.

    A stage with both ends of a model holds `tied_numel` less than the sum of its layers.
    """
    return sum(shard_numel(tensor, tp) for tensor in held_tensors(model, range(layer, layer + 1)))


def tied_numel(model: ModelShape, tp: int = 1) -> int:
    """Elements of the weight that embedding and head share, on one rank of a TP group."""
    return shard_numel(layer_tensors(model, 0)[0], tp) if model.tied_head else 0


@cache
def expert_numel(model: ModelShape) -> int:
    """Elements of the routed experts of one MoE block, whole; 0 for a dense model."""
    if model.experts is None:
        return 0
    return sum(tensor.numel for tensor in layer_tensors(model, model.layers) if tensor.experts)


@cache
def counted_numel(model: ModelShape) -> int:
    """Elements of one MoE block that are counted instead of trained; 0 for a dense model."""
    return sum(one.numel for one in layer_tensors(model, model.layers) if one.is_counted)


def model_numel(model: ModelShape) -> int:
    """Elements of the model; a head that shares the embedding's weight counts once."""
    return sum(tensor.numel for tensor in model_tensors(model))
