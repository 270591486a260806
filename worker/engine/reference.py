"""The oracle: the same training in one process of plain torch.

It shares the data order, the initial weights and the learning rate with the engine, and nothing
else: its model, loss, norm, clipping and step are written apart, without groups, pieces or
DeepSpeed, so that an error there cannot hide here.
Source: the LLaMA architecture as published (RMS norm, rotary positions, SwiGLU).

Legend: B global batch, S sequence, h hidden, V vocabulary.
"""

from __future__ import annotations

import itertools
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
        q, k, v = _positions(heads[0]), _positions(heads[1]), heads[2]
        k, v = (t.repeat_interleave(model.heads // model.kv_heads, dim=1) for t in (k, v))
        attention = softmax(q @ k.transpose(-1, -2) * model.head_dim**-0.5 + mask, dim=-1) @ v
        x = x + attention.transpose(1, 2).reshape(batch, length, -1) @ w[f"{layer}.o"].T
        h = _rms(x, w[f"{layer}.norm2"])
        x = x + (silu(h @ w[f"{layer}.gate"].T) * (h @ w[f"{layer}.up"].T)) @ w[f"{layer}.down"].T
    last = model.layers + 1
    return _rms(x, w[f"{last}.norm"]) @ w[f"{last}.weight"].T


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def _positions(x: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1]
    frequency = 10000.0 ** (-torch.arange(0, width // 2) / (width // 2))
    angle = torch.outer(torch.arange(x.shape[-2]), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)  # [S, d / 2], complex
    pairs = torch.complex(x[..., : width // 2], x[..., width // 2 :]) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def training(spec: TrainingSpec, model: ModelShape) -> Iterator[tuple[float, Weights]]:
    """Train for ever: after each step its loss, and the weights, which the next step changes."""
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
    for step in itertools.count():
        yield _step(spec, model, weights, adam, _batch(spec, dataset, step), step), shown


def train(
    spec: TrainingSpec,
    model: ModelShape,
    steps: int,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[list[float], Weights]:
    """Losses of the first `steps` steps, of which there is at least one, and the final weights.

    `progress(step, loss)` is called after each.
    """
    losses: list[float] = []
    weights: Weights = {}
    for step, (loss, held) in enumerate(itertools.islice(training(spec, model), steps)):
        losses.append(loss)
        weights = held
        if progress:
            progress(step, loss)
    return losses, weights


def _batch(spec: TrainingSpec, dataset: Dataset, step: int) -> Iterator[MicroBatch]:
    return micro_batches(dataset, spec.seed, step, spec.global_batch, 0, 1, spec.global_batch)


def _step(
    spec: TrainingSpec,
    model: ModelShape,
    weights: Weights,
    adam: torch.optim.AdamW,
    batch: Iterator[MicroBatch],
    step: int,
) -> float:
    tokens, labels, _ = next(iter(batch))
    loss = cross_entropy(forward(model, weights, tokens).flatten(0, 1), labels.flatten())
    adam.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    torch.nn.utils.clip_grad_norm_(list(weights.values()), spec.gradient_clip)
    for group in adam.param_groups:
        group["lr"] = learning_rate(spec, step)
    adam.step()
    return loss.item()
