"""The named tensors of a model, layer by layer, and the dimension that tensor parallelism cuts.

q, k, v and gate, up are tensors of their own: a fused tensor would make a TP slice a strange set of
rows, and initial weights would depend on the plan.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from planner.workload import ModelShape


class Tensor(NamedTuple):
    """One parameter of the model.

    Attributes:
        name: "<layer index>.<attribute>"; layer 0 is the embedding, L + 1 the head.
        shape: of the whole tensor, whatever the plan.
        dim: the dimension that TP cuts; None if every rank of a TP group holds the whole.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None

    @property
    def layer(self) -> int:
        """Index in the layer list."""
        return int(self.name.split(".")[0])

    @property
    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.shape)


@cache
def layer_tensors(model: ModelShape, layer: int) -> tuple[Tensor, ...]:
    """The tensors of one layer (0 = embedding, 1..L = blocks, L + 1 = head), in canonical order."""
    h, f, v = model.hidden, model.ffn, model.vocab
    kv = model.kv_heads * model.head_dim
    rows: dict[str, tuple[tuple[int, ...], int | None]]
    if layer == 0:
        rows = {"weight": ((v, h), 0)}
    elif layer == model.layers + 1:
        rows = {"norm": ((h,), None), "weight": ((v, h), 0)}
    else:
        rows = {
            "norm1": ((h,), None),
            "q": ((h, h), 0),
            "k": ((kv, h), 0),
            "v": ((kv, h), 0),
            "o": ((h, h), 1),
            "norm2": ((h,), None),
            "gate": ((f, h), 0),
            "up": ((f, h), 0),
            "down": ((h, f), 1),
        }
    return tuple(Tensor(f"{layer}.{name}", shape, dim) for name, (shape, dim) in rows.items())


@cache
def model_tensors(model: ModelShape) -> tuple[Tensor, ...]:
    """All tensors of a model in canonical order."""
    return tuple(
        tensor for layer in range(model.layers + 2) for tensor in layer_tensors(model, layer)
    )


def shard_numel(tensor: Tensor, tp: int) -> int:
    """Elements that one rank of a TP group holds."""
    return tensor.numel if tensor.dim is None else tensor.numel // tp


def layer_numel(model: ModelShape, layer: int, tp: int = 1) -> int:
    """Elements of a layer that one rank of a TP group holds."""
    return sum(shard_numel(tensor, tp) for tensor in layer_tensors(model, layer))
