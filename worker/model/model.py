"""A LLaMA-like decoder, layer by layer, with explicit tensor-parallel groups.

Four rules keep it exact under any plan: a layer is told its TP group instead of asking a global;
sharded weights are plain tensors; two autograd functions do all TP communication; what is not
sharded (norms, activations between layers) is computed identically by every rank of the group.

Legend: b micro-batch, S sequence, h hidden, V vocabulary, t TP degree.
Source: Megatron-LM's column and row parallel layers, as described in its paper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import nn

from planner.model.shape import ModelShape, StageRecompute
from planner.model.tensors import Tensor, layer_tensors
from worker.model.recompute import Function, computed_again
from worker.training_settings import IGNORED
from worker.world.group import Group, ReduceOp

NORM_EPSILON = 1e-6
ROTARY_BASE = 10000.0
ShardSource = Callable[[Tensor], torch.Tensor]  # a rank's shard of a tensor: generated, or migrated


class TensorParallel(NamedTuple):
    """One rank's place in the TP group of its stage; `group` is None in a group of one."""

    size: int = 1
    slot: int = 0
    group: Group | None = None

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> None:
        """Reduce a tensor in place over the TP group."""
        if self.group is not None:
            self.group.all_reduce_(tensor, op)


class _Copy(torch.autograd.Function):
    """Into a column-parallel region.

    Identity forward, sum of the partial input gradients backward.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.clone()
        ctx.tp.all_reduce_(grad)
        return grad, None


class _Reduce(torch.autograd.Function):
    """Out of a row-parallel region: sum of the partial outputs forward, identity backward."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        x = x.clone()
        tp.all_reduce_(x)
        return x

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Layer(nn.Module):
    """Owns the canonical tensors of one layer; `source` says where their numbers come from.

    Attributes:
        recompute: what the backward pass computes again, as the plan says of the stage.
    """

    recompute: StageRecompute = "none"

    def __init__(
        self, model: ModelShape, index: int, tp: TensorParallel, source: ShardSource
    ) -> None:
        super().__init__()
        self.model, self.tp = model, tp
        for tensor in layer_tensors(model, index):
            setattr(self, tensor.name.split(".")[1], nn.Parameter(source(tensor)))

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Mark the start of a column-parallel region."""
        return x if self.tp.size == 1 else _apply(_Copy, x, self.tp)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum partial results at the end of a row-parallel region."""
        return x if self.tp.size == 1 else _apply(_Reduce, x, self.tp)

    def normalise(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm over the last dimension."""
        return functional.rms_norm(x, (self.model.hidden,), weight, NORM_EPSILON)


class Embedding(Layer):
    """Vocabulary-parallel.

    Each rank looks up the rows that it holds, the others give zero, the sum is exact.
    """

    weight: torch.Tensor  # [V / t, h]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[b, S] token ids -> [b, S, h]."""
        local = tokens - self.tp.slot * len(self.weight)
        inside = (local >= 0) & (local < len(self.weight))
        found = functional.embedding(local.clamp(0, len(self.weight) - 1), self.weight)
        return self.reduce(found * inside.unsqueeze(-1))


class Block(Layer):
    """Attention and SwiGLU with residuals; heads and ffn are cut by TP."""

    norm1: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    norm2: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S, h] -> [b, S, h]."""
        return computed_again(self._whole, x) if self.recompute == "full" else self._whole(x)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.reduce(self._attention(self.copy(self.normalise(x, self.norm1))))
        h = self.copy(self.normalise(x, self.norm2))
        gated = functional.silu(functional.linear(h, self.gate)) * functional.linear(h, self.up)
        return x + self.reduce(functional.linear(gated, self.down))

    def _attention(self, h: torch.Tensor) -> torch.Tensor:
        b, s, _ = h.shape
        q, k, v = (
            functional.linear(h, weight).view(b, s, -1, self.model.head_dim).transpose(1, 2)
            for weight in (self.q, self.k, self.v)
        )
        core: Function = self._core
        if self.recompute == "selective":
            core = partial(computed_again, core)
        out = core(rotate(q), rotate(k), v)
        return functional.linear(out.transpose(1, 2).reshape(b, s, -1), self.o)

    def _core(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = self.model.heads != self.model.kv_heads
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


class Head(Layer):
    """Final norm and this rank's columns of the logits; the loss never gathers them."""

    norm: torch.Tensor
    weight: torch.Tensor  # [V / t, h]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S, h] -> [b, S, V / t]."""
        return functional.linear(self.copy(self.normalise(x, self.norm)), self.weight)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions of [b, heads, S, d]; halves are rotated against each other."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * ROTARY_BASE ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    turned = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.cat(turned, dim=-1).to(x.dtype)  # computed in fp32


def vocabulary_loss(tp: TensorParallel) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Mean cross entropy over vocabulary-parallel logits, of the labels that are not IGNORED.

    A maximum, a sum of exponentials and the target's logit.  0 where no label is left.
    """

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        learnt = labels != IGNORED
        count = learnt.sum().clamp(min=1)
        if tp.size == 1:
            flat, targets = logits.flatten(0, 1), labels.flatten()
            return (
                functional.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum")
                / count
            )
        top = logits.detach().amax(-1)
        tp.all_reduce_(top, "max")
        logits = logits - top.unsqueeze(-1)
        local = labels - tp.slot * logits.shape[-1]
        inside = (local >= 0) & (local < logits.shape[-1])
        picked = (
            logits.gather(-1, local.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
            * inside
        )
        total, target = _apply(_Reduce, torch.stack([logits.exp().sum(-1), picked]), tp)
        mean: torch.Tensor = ((total.log() - target) * learnt).sum() / count
        return mean

    return loss


def layer_class(model: ModelShape, index: int) -> type[Layer]:
    """The class of layer `index` in [embedding, block 1..L, head]."""
    return Embedding if index == 0 else Head if index == model.layers + 1 else Block


def _apply(
    function: type[torch.autograd.Function], x: torch.Tensor, tp: TensorParallel
) -> torch.Tensor:
    result = function.apply(x, tp)
    assert isinstance(result, torch.Tensor)
    return result
