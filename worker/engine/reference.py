"""The oracle: the same training in one process of plain torch.

It shares the data order, the initial weights and the learning rate with the engine, and nothing
else: its model, loss, norm, clipping and step are written apart, without groups, pieces or
DeepSpeed, so that an error there cannot hide here.
Source: the LLaMA architecture as published (RMS norm, rotary positions, SwiGLU).

Legend: B global batch, S sequence, h hidden, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import cross_entropy, silu, softmax

from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from worker.contract import TrainingSpec
from worker.data.batches import MicroBatch, micro_batches
from worker.data.dataset import Dataset
from worker.engine.learning_rate import learning_rate
from worker.model.initial_weights import initial_rows

Weights = dict[str, torch.Tensor]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def forward(model: ModelShape, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [B, S, V] of token ids [B, S]."""
    x = w["0.weight"][tokens]
    batch, length = tokens.shape
    mask = torch.full((length, length), float("-inf")).triu(1)
    for layer in range(1, model.layers + 1):
        h = _rms(x, w[f"{layer}.norm1"])
        heads = []
        for name, count in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
            heads.append(
                (h @ w[f"{layer}.{name}"].T)
                .view(batch, length, count, model.head_dim)
                .transpose(1, 2)
            )
        q, k, v = _positions(heads[0]).float(), _positions(heads[1]).float(), heads[2].float()
        k, v = (t.repeat_interleave(model.heads // model.kv_heads, dim=1) for t in (k, v))
        scores = softmax(q @ k.transpose(-1, -2) * model.head_dim**-0.5 + mask, dim=-1)
        attention = (scores @ v).to(x.dtype)
        x = x + attention.transpose(1, 2).reshape(batch, length, -1) @ w[f"{layer}.o"].T
        h = _rms(x, w[f"{layer}.norm2"])
        x = x + (silu(h @ w[f"{layer}.gate"].T) * (h @ w[f"{layer}.up"].T)) @ w[f"{layer}.down"].T
    last = model.layers + 1
    return _rms(x, w[f"{last}.norm"]) @ w[f"{last}.weight"].T


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scaled = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
    return scaled.to(x.dtype)


def _positions(x: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1]
    frequency = 10000.0 ** (-torch.arange(0, width // 2) / (width // 2))
    angle = torch.outer(torch.arange(x.shape[-2]), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)  # [S, d / 2], complex
    wide = x.float()
    pairs = torch.complex(wide[..., : width // 2], wide[..., width // 2 :]) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1).to(x.dtype)


class Scale:
    """The loss scale of fp16; 1 for ever in any other precision."""

    def __init__(self, spec: TrainingSpec) -> None:
        self._scaling = spec.scaling
        self.now = float(self._scaling.initial) if self._scaling else 1.0
        self._finite = 0

    def learn(self, is_finite: bool) -> None:
        """Halve it after an overflow, and double it after a window without one."""
        if self._scaling is None:
            return
        self._finite = self._finite + 1 if is_finite else 0
        if not is_finite:
            self.now = max(1.0, self.now / 2)
        elif self._finite == self._scaling.window:
            self.now, self._finite = self.now * 2, 0


def training(
    spec: TrainingSpec, model: ModelShape, micro_batch: int | None = None
) -> Iterator[tuple[float, Weights]]:
    """Train for ever: after each step its loss, and the weights, which the next step changes.

    Args:
        spec: what is trained.
        model: its shape.
        micro_batch: samples of a forward pass; None: the whole batch.
    """
    dataset = Dataset(spec.data, spec.sequence_length, model.vocab)
    weights = {
        tensor.name: initial_rows(
            spec.seed, tensor, 0, tensor.shape[tensor.dim or 0]
        ).requires_grad_()
        for tensor in model_tensors(model)
    }
    groups: list[dict[str, object]] = [
        {"params": [w for w in weights.values() if w.dim() > 1]},
        {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(
        groups,
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
    )
    shown = {name: weight.detach() for name, weight in weights.items()}
    size, scale = micro_batch or spec.global_batch, Scale(spec)
    for step in itertools.count():
        count = spec.global_batch // size
        batches = micro_batches(dataset, spec.seed, step, spec.global_batch, 0, count, size)
        adam.zero_grad()
        loss = sum(_backward(spec, model, weights, batch, scale.now) for batch in batches)
        for weight in weights.values():
            assert weight.grad is not None
            weight.grad.mul_(1 / scale.now)
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), spec.gradient_clip)
        for group in adam.param_groups:
            group["lr"] = learning_rate(spec, step)
        is_finite = math.isfinite(norm.item())
        if is_finite:
            adam.step()
        scale.learn(is_finite)
        yield loss, shown


def train(
    spec: TrainingSpec,
    model: ModelShape,
    steps: int,
    progress: Callable[[int, float], None] | None = None,
    micro_batch: int | None = None,
) -> tuple[list[float], Weights]:
    """Losses of the first `steps` steps, of which there is at least one, and the final weights.

    `progress(step, loss)` is called after each.
    """
    losses: list[float] = []
    weights: Weights = {}
    found = itertools.islice(training(spec, model, micro_batch), steps)
    for step, (loss, held) in enumerate(found):
        losses.append(loss)
        weights = held
        if progress:
            progress(step, loss)
    return losses, weights


def _backward(
    spec: TrainingSpec,
    model: ModelShape,
    weights: Weights,
    batch: MicroBatch,
    scale: float,
) -> float:
    """Add the gradients of one micro-batch in fp32; what its loss adds to that of the step."""
    dtype = _DTYPES[spec.precision]
    used = {name: w.to(dtype) for name, w in weights.items()}  # autograd casts gradients back
    logits = forward(model, used, batch.tokens).float()
    loss = cross_entropy(logits.flatten(0, 1), batch.labels.flatten()) * batch.weight
    (loss * scale).backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    return loss.item()
