"""A decoder, layer by layer, with explicit tensor-parallel groups.

Five rules keep it exact under any plan: a layer is told its TP group instead of asking a global;
sharded weights are plain tensors; two autograd functions do all TP communication; what is not
sharded (norms, activations between layers) is computed identically by every rank of the group; and
what is dropped is a function of the sample.
Rows of the vocabulary that no token has give no logit, so nothing ever trains them.

Legend: b micro-batch, S sequence, h hidden, V vocabulary, t TP degree.
Source: Megatron-LM's column and row parallel layers, as described in its paper; the families' own
papers and their code in `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as functional
from torch import nn

from planner.model.arithmetic import Activation
from planner.model.shape import Kind, ModelShape, StageRecompute
from planner.model.tensors import Tensor, held_tensors
from worker.model.attention import Drop, attend
from worker.model.dropout import dropped, dropped_scores
from worker.model.experts.mixture import ExpertPlace, visited
from worker.model.experts.products import Stack
from worker.model.experts.routing import auxiliary_loss, route, with_loss, with_visits
from worker.model.forward_context import CurrentContext
from worker.model.latent import heads_of, padded, score_scale
from worker.model.parallel import TensorParallel
from worker.model.recompute import Function, computed_again
from worker.model.rotary import rotate

# A rank's shard of a tensor: its numbers, or the parameter that another layer has too.
ShardSource = Callable[[Tensor], torch.Tensor]
_ACTIVATIONS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class Layer(nn.Module):
    """Holds the canonical tensors of one layer; `source` says where their numbers come from.

    A tied head holds the embedding's weight, which is one parameter where both ends are.

    Attributes:
        recompute: what the backward pass computes again, as the plan says of the stage.
    """

    recompute: StageRecompute = "none"

    def __init__(
        self,
        model: ModelShape,
        index: int,
        tp: TensorParallel,
        source: ShardSource,
        current: CurrentContext | None = None,
    ) -> None:
        """Take the tensors; `current` is asked what to drop, and without it nothing is."""
        super().__init__()
        self.model, self.index, self.tp = model, index, tp
        self.current = current or CurrentContext()
        for tensor in held_tensors(model, range(index, index + 1)):
            found = source(tensor)
            parameter = found if isinstance(found, nn.Parameter) else nn.Parameter(found)
            setattr(self, tensor.name.split(".")[1], parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`compute`; where the plan says so, a block keeps its input only."""
        if self.recompute == "full" and self.model.kind(self.index) in _BLOCKS:
            return self.again(self.compute, x)
        return self.compute(x)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Kind of the layer."""
        raise NotImplementedError

    def tensor(self, name: str) -> torch.Tensor | None:
        """A tensor that not every model has."""
        found: torch.Tensor | None = getattr(self, name, None)
        return found

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Rows of the output, with their bias if there is one."""
        return functional.linear(x, getattr(self, name), self.tensor(f"{name}_bias"))

    def out(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A branch's part of the residual stream: summed over TP, its bias once, dropout."""
        whole = self.tp.reduce(functional.linear(x, getattr(self, name)))
        bias = self.tensor(f"{name}_bias")
        whole = whole if bias is None else whole + bias
        return self.drop(whole, name, self.model.arithmetic.residual_dropout)

    def drop(self, x: torch.Tensor, name: str, rate: float, first: int = 0) -> torch.Tensor:
        """Dropout at a place of this layer; see `worker.model.dropout`."""
        return dropped(x, self.current.context, f"{self.index}.{name}", rate, first)

    def again(self, function: Function, *inputs: torch.Tensor) -> torch.Tensor:
        """Result of a function, recomputed in the backward pass as of this context."""
        context = self.current.context

        def as_now(*given: torch.Tensor) -> torch.Tensor:
            with self.current.at(context):
                return function(*given)

        return computed_again(as_now, *inputs)

    def normalise(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMS norm or LayerNorm over the last dimension."""
        weight, epsilon = getattr(self, name), self.model.arithmetic.norm_epsilon
        if self.model.bias:
            return functional.layer_norm(
                x, weight.shape, weight, self.tensor(f"{name}_bias"), epsilon
            )
        return functional.rms_norm(x, weight.shape, weight, epsilon)


class Embedding(Layer):
    """Vocabulary-parallel.

    Each rank looks up the rows that it holds, the others give zero, the sum is exact.
    The row of the padding token has no gradient from here; a tied head gives it its own.
    """

    weight: torch.Tensor  # [V / t, h]

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S] token ids -> [b, S, h]."""
        length = x.shape[1]
        local = x - self.tp.slot * len(self.weight)
        inside = (local >= 0) & (local < len(self.weight))
        found = functional.embedding(
            local.clamp(0, len(self.weight) - 1), self.weight, self._padding_row()
        )
        x = self.tp.reduce(found * inside.unsqueeze(-1))
        positions, arithmetic = self.tensor("positions"), self.model.arithmetic
        if positions is not None:
            first, documents = arithmetic.position_offset, self.current.documents
            if documents is None:
                x = x + positions[first : first + length]
            else:
                x = x + functional.embedding(first + documents.positions, positions)
        return self.drop(x, "embedding", arithmetic.embedding_dropout)

    def _padding_row(self) -> int | None:
        """The row of the padding token, if it is among those of this rank."""
        token, rows = self.model.arithmetic.padding_token, len(self.weight)
        if token is None or token // rows != self.tp.slot:
            return None
        return token % rows


class Block(Layer):
    """Attention and feed-forward layer with residuals; heads and ffn are cut by TP."""

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S, h] -> [b, S, h]."""
        x = x + self.out(self._attention(self.normalise(x, "norm1")), "o")
        return x + self.feed_forward(self.normalise(x, "norm2"))

    def feed_forward(self, h: torch.Tensor) -> torch.Tensor:
        """What the second branch adds, [b, S, h]."""
        h = self.tp.copy(h)
        activate = _ACTIVATIONS[self.model.arithmetic.activation]
        if self.model.gated:
            return self.out(activate(self.linear(h, "gate")) * self.linear(h, "up"), "down")
        return self.out(activate(self.linear(h, "up")), "down")

    def _attention(self, h: torch.Tensor) -> torch.Tensor:
        model = self.model
        if model.latent is None:
            q, k, v = self._heads(self.tp.copy(h))
        else:
            q, k, v = heads_of(h, model, partial(getattr, self), self.tp, self._turned)
        drop = self._drop_of_scores(*q.shape[1:3])
        if self.recompute == "selective" and drop is None:
            out = self.again(self._core, q, k, v)
        else:  # with dropout the core keeps nothing but its inputs anyway
            out = self._core(q, k, v, drop)
        return out.transpose(1, 2).flatten(2)

    def _heads(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (b, s, _), model = h.shape, self.model
        q, k, v = (
            self.linear(h, name).view(b, s, -1, model.head_dim).transpose(1, 2) for name in "qkv"
        )
        if model.query_key_norm:
            q, k = self._normalise_heads(q, "q_norm"), self._normalise_heads(k, "k_norm")
        return (self._turned(q), self._turned(k), v) if model.rotary else (q, k, v)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotated by the positions of the tokens, [b, heads, S, d]."""
        documents = self.current.documents
        places = None if documents is None else documents.positions
        return rotate(x, self.model.arithmetic.rotary, places, self.current.device)

    def _core(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, drop: Drop | None = None
    ) -> torch.Tensor:
        arithmetic, documents = self.model.arithmetic, self.current.documents
        latent = self.model.latent
        found = attend(
            q,
            k,
            v if latent is None else padded(v, q.shape[-1]),
            scale=score_scale(self.model),
            window=arithmetic.window(self.index),
            documents=documents,
            drop=drop,
        )
        return found if latent is None else found[..., : latent.value]

    def _drop_of_scores(self, heads: int, length: int) -> Drop | None:
        """Dropout of this rank's probabilities, as of this context; None: nothing is dropped."""
        rate, context = self.model.arithmetic.attention_dropout, self.current.context
        if not rate or context is None or not self.current.drops:
            return None
        before = self.tp.slot * heads  # of other ranks
        return partial(
            dropped_scores,
            context=context,
            name=f"{self.index}.attention",
            rate=rate,
            heads=range(before, before + heads),
            length=length,
        )

    def _normalise_heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMS norm of each head; its weight is whole, so the gradients of all heads are summed."""
        weight = self.tp.copy(getattr(self, name))
        return functional.rms_norm(x, weight.shape, weight, self.model.arithmetic.norm_epsilon)


class MoeBlock(Block):
    """A block whose second branch is a mixture of experts; the router computes in fp32.

    Attributes:
        place: of the experts, as the plan says of the stage.
    """

    place = ExpertPlace()
    router: torch.Tensor  # [E, h]; where there is one its `router_bias`, [E]
    experts_gate: torch.Tensor  # of this rank's experts, [E / EP, F / ETP, h]
    experts_up: torch.Tensor
    experts_down: torch.Tensor  # [E / EP, h, F / ETP]

    def feed_forward(self, h: torch.Tensor) -> torch.Tensor:
        """What the experts of each token give, weighted and added, [b, S, h]."""
        experts, arithmetic = self.model.experts, self.model.arithmetic
        assert experts is not None  # it is a block of such a model
        tokens = h.flatten(0, 1)
        logits = functional.linear(tokens.float(), self.router.float())
        bias = self.tensor("router_bias")
        routes = route(logits, experts.routing, experts.per_token, bias)
        if bias is not None and not self.current.is_empty:
            weights = with_visits(routes.weights, routes.chosen, bias)
            routes = routes._replace(weights=weights)
        weight = self.current.sample_weight * experts.auxiliary
        if weight:
            loss = auxiliary_loss(routes, len(h), has_bias=bias is not None)
            blocks = self.model.layers - experts.dense_blocks
            routes = routes._replace(weights=with_loss(routes.weights, loss, weight / blocks))
        activate = _ACTIVATIONS[arithmetic.activation]
        stack = Stack(self.experts_gate, self.experts_up, self.experts_down, activate)
        is_empty = self.current.is_empty
        found = visited(tokens, routes, self.place, self.tp, stack, is_empty=is_empty)
        found = found.view(h.shape)
        if experts.shared:
            found = found + self._of_shared(self.tp.copy(h), activate)
        return self.drop(found, "down", arithmetic.residual_dropout)

    def _of_shared(
        self, h: torch.Tensor, activate: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """What the shared experts give, which every token visits; TP cuts them as one."""
        wide = activate(self.linear(h, "shared_gate")) * self.linear(h, "shared_up")
        return self.tp.reduce(self.linear(wide, "shared_down"))


class Head(Layer):
    """Final norm and this rank's columns of the logits; the loss never gathers them."""

    weight: torch.Tensor  # [V / t, h]

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S, h] -> [b, S, V / t]; minus infinity where no token is."""
        logits = functional.linear(self.tp.copy(self.normalise(x, "norm")), self.weight)
        rows = len(self.weight)
        tokens = self.model.vocab - self.tp.slot * rows  # of the rows from this rank's first on
        if tokens >= rows:
            return logits
        # In place, and unseen by autograd: the loss gives these columns a gradient of zero.
        logits.detach()[..., max(0, tokens) :] = float("-inf")
        return logits


_BLOCKS: tuple[Kind, ...] = ("block", "moe_block")
_CLASSES: Mapping[Kind, type[Layer]] = {
    "embedding": Embedding,
    "block": Block,
    "moe_block": MoeBlock,
    "head": Head,
}


def layer_class(model: ModelShape, index: int) -> type[Layer]:
    """The class of layer `index` in [embedding, block 1..L, head]."""
    return _CLASSES[model.kind(index)]
