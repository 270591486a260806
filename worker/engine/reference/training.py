"""The oracle: the same training in one process of plain torch.

It shares data and their order, initial weights, what dropout keeps and the learning rate with the
engine, and nothing else: its model, loss, norm, clipping and step are written apart, without
groups, pieces or DeepSpeed, so that an error there cannot hide here.
Source: the architectures as published and as in `transformers`.

Legend: B global batch, S sequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.functional import cross_entropy

from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from worker.contract import TrainingSpec
from worker.data.batches import MicroBatch, micro_batches
from worker.data.dataset import Dataset
from worker.engine.learning_rate import learning_rate
from worker.engine.reference.forward import Busy, Weights, forward
from worker.errors import WorkerError
from worker.model.initial_weights import initial_rows

Visits = list[list[int]]  # of each mixture: how often each expert is visited
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    spec: TrainingSpec,
    model: ModelShape,
    micro_batch: int | None = None,
    visits: list[Visits] | None = None,
) -> Iterator[tuple[float, Weights]]:
    """Train for ever: after each step its loss, and the weights, which the next step changes.

    Args:
        spec: what is trained.
        model: its shape.
        micro_batch: samples of a forward pass; None: the whole batch.
        visits: gets those of each step, before it is told.

    Raises:
        WorkerError: the model is of the user's own.
    """
    if model.own is not None:
        raise WorkerError(
            f"the reference computes no model of your own, such as {model.name}", code="Unsupported"
        )
    dataset = Dataset(spec.data, spec.sequence_length, model.vocab)
    counted = [tensor.name for tensor in model_tensors(model) if tensor.is_counted]
    weights = _initial_weights(spec, model)
    trained = [weight.requires_grad_() for name, weight in weights.items() if name not in counted]
    adam = _optimizer(spec, trained)
    shown = {name: weight.detach() for name, weight in weights.items()}
    size, scale = micro_batch or spec.global_batch, Scale(spec)
    for step in itertools.count():
        count = spec.global_batch // size
        batches = micro_batches(dataset, spec.seed, step, spec.global_batch, 0, count, size)
        adam.zero_grad()
        first, met = step * spec.global_batch, list[torch.Tensor]()
        loss = 0.0
        for index, batch in enumerate(batches):
            more, busy = _backward(
                spec, model, weights, batch, first + index * size, scale.now, dataset
            )
            loss += more
            before = met or [torch.zeros_like(one.visits) for one in busy]
            met = [so_far + one.visits for so_far, one in zip(before, busy, strict=True)]
        for weight in trained:
            assert weight.grad is not None
            weight.grad.mul_(1 / scale.now)
        norm = torch.nn.utils.clip_grad_norm_(trained, spec.gradient_clip)
        for group in adam.param_groups:
            group["lr"] = learning_rate(spec, step)
        is_finite = math.isfinite(norm.item())
        if is_finite:
            adam.step()
            for name, found in zip(counted, met, strict=False):  # none, or every mixture
                _level(weights[name], found, spec.router_bias_rate)
        scale.learn(is_finite)
        if visits is not None:
            visits.append([[int(count) for count in of_block] for of_block in met])
        yield loss, shown


def _initial_weights(spec: TrainingSpec, model: ModelShape) -> Weights:
    deviation = model.arithmetic.initial_deviation
    return {
        tensor.name: initial_rows(spec.seed, deviation, tensor, 0, tensor.shape[tensor.dim or 0])
        for tensor in model_tensors(model)
    }


def _optimizer(spec: TrainingSpec, trained: list[torch.Tensor]) -> torch.optim.AdamW:
    """AdamW, which decays matrices alone."""
    groups: list[dict[str, object]] = [
        {"params": [w for w in trained if w.dim() > 1]},
        {"params": [w for w in trained if w.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
    )


def train(
    spec: TrainingSpec,
    model: ModelShape,
    steps: int,
    progress: Callable[[int, float], None] | None = None,
    micro_batch: int | None = None,
    visits: list[Visits] | None = None,
) -> tuple[list[float], Weights]:
    """Losses of the first `steps` steps, at least one, and the final weights.

    `progress(step, loss)` is called after each, and `visits` gets those of each.
    """
    losses: list[float] = []
    weights: Weights = {}
    found = itertools.islice(training(spec, model, micro_batch, visits), steps)
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
    first_sample: int,
    scale: float,
    dataset: Dataset,
) -> tuple[float, list[Busy]]:
    """Add the gradients of one micro-batch in fp32.

    Returns:
        What its loss adds to that of the step, and how busy the experts of each mixture are.
    """
    dtype = _DTYPES[spec.precision]
    used = {  # autograd casts gradients back
        name: w if name.endswith(".router_bias") else w.to(dtype) for name, w in weights.items()
    }
    begins = None
    if spec.data.document_mask:
        samples = range(first_sample, first_sample + len(batch.tokens))
        begins = begins_of([dataset.documents(spec.seed, sample) for sample in samples])
    busy: list[Busy] = []
    logits = forward(model, used, batch.tokens, spec.seed, first_sample, begins, busy).float()
    loss = cross_entropy(logits.flatten(0, 1), batch.labels.flatten()) * batch.weight
    whole = loss
    if busy and model.experts is not None:
        mean = torch.stack([one.unequal for one in busy]).mean(0).sum() / spec.global_batch
        whole = loss + model.experts.auxiliary * mean
    (whole * scale).backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    return loss.item(), busy


def _level(bias: torch.Tensor, visits: torch.Tensor, rate: float) -> None:
    """Raise the biases of experts below the mean of the visits, and lower those above it."""
    total = int(visits.sum())
    for expert, found in enumerate(visits.tolist()):
        if found * len(visits) != total:
            bias[expert] += rate if found * len(visits) < total else -rate


def begins_of(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Where the document of each token begins, from the lengths of the documents of each row."""
    starts = [
        [sum(lengths[:index]) for index, length in enumerate(lengths) for _ in range(length)]
        for lengths in rows
    ]
    return torch.tensor(starts)
