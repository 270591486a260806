"""The update of a step: AdamW's, as one pure function of its arguments, and that of biases.

Training and recovery apply the same one.  DeepSpeed's engine holds an optimizer that it never
steps.
Invariant: each operation is one that IEEE 754 rounds once (a sum, a product, a quotient, a root).
So the bits depend on no device and no instruction set.  Operations that multiply and add at once
(`lerp_`, `addcmul_`, `addcdiv_`) are rounded once or twice as the device likes; none is here.
A quotient by a number is a product with its reciprocal, because CUDA computes it so.
On a processor numpy takes the roots: torch's library (MKL) rounds some of them wrongly.
Source: Loshchilov and Hutter, "Decoupled weight decay regularization"; IEEE 754-2019, 5.4.1; of a
bias of experts: Wang et al., "Auxiliary-loss-free load balancing strategy".
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from planner.cost.memory import WORKER_BUCKET
from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, held_tensors
from planner.plans.pieces import is_empty, owned, shard
from worker.contract import TrainingSpec
from worker.engine.seam import Parts, Progress, StageBuild
from worker.errors import HalfUpdated
from worker.model.boxes import view

# Elements that are updated at a time.  On a processor the chunks of all five tensors stay in its
# cache: a third faster than with 4 Mi (benchmarks/step_memory.py).  On a device they are large
# beside the launch of a kernel, and the one intermediate result is within the memory rule.
HOST_CHUNK, DEVICE_CHUNK = 1 << 17, 2 * WORKER_BUCKET
NORM_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds the same


class Recipe(NamedTuple):
    """Constants of all updates of a tensor."""

    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    gradient_clip: float


def recipe_of(spec: TrainingSpec, tensor: Tensor) -> Recipe:
    """The recipe of a tensor: norms, biases and all else of one dimension do not decay."""
    decay = spec.weight_decay if len(tensor.shape) > 1 else 0.0
    return Recipe(spec.betas, spec.epsilon, decay, spec.gradient_clip)


@torch.no_grad()
def update_(
    parts: Parts,
    gradient: torch.Tensor,
    norm: float,
    learning_rate: float,
    updates: int,
    recipe: Recipe,
    copy: torch.Tensor | None = None,
    memory: torch.Tensor | None = None,
) -> None:
    """Apply one update to one tensor in place.

    Every element is computed on its own, so the bits do not depend on the cut.

    Args:
        parts: (weight, exp_avg, exp_avg_sq), fp32.
        gradient: fp32, summed over the plan and not clipped; it is only read.
        norm: of the gradient of the whole plan; if it is not finite the update is skipped.
        learning_rate: of this update.
        updates: applied before this one; not the step, which counts skipped ones too.
        recipe: of the tensor.
        copy: of the weight in low precision, written anew.
        memory: fp32 numbers to compute in, `scratch_size` of them; None: they are allocated.
    """
    if not math.isfinite(norm):
        return
    first, second = recipe.betas
    step_size = learning_rate / (1 - first ** (updates + 1))
    correction = 1 / math.sqrt(1 - second ** (updates + 1))
    clip = recipe.gradient_clip
    share = clip / (norm + NORM_EPSILON) if norm > clip else 1.0  # of the gradient
    chunks = [*_chunks(*parts, gradient)]
    if memory is None:
        memory = torch.empty(scratch_size(parts, gradient), device=gradient.device)
    for weight, mean, square, grad in chunks:
        scratch = memory[: grad.numel()].view(grad.shape)
        if recipe.weight_decay:
            weight.mul_(1 - learning_rate * recipe.weight_decay)
        mean.mul_(first).add_(torch.mul(grad, share * (1 - first), out=scratch))
        # scaled before it is squared, so that a large gradient that is clipped does not overflow
        torch.mul(grad, share * math.sqrt(1 - second), out=scratch)
        square.mul_(second).add_(scratch.mul_(scratch))
        _root(square, out=scratch).mul_(correction).add_(recipe.epsilon)
        weight.sub_(torch.div(mean, scratch, out=scratch).mul_(step_size))
    if copy is not None:
        copy.copy_(parts[0])


def scratch_size(parts: Parts, gradient: torch.Tensor) -> int:
    """Numbers that the update of a tensor computes in."""
    return next(_chunks(*parts, gradient))[0].numel()


def _root(numbers: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Roots of fp32 numbers, each rounded once."""
    if numbers.is_cpu:
        np.sqrt(numbers.numpy(), out=out.numpy())
        return out
    return torch.sqrt(numbers, out=out)


def _chunks(*tensors: torch.Tensor) -> zip[tuple[torch.Tensor, ...]]:
    """Views of at most a chunk of each; of tensors with gaps in memory, some rows."""
    size = HOST_CHUNK if tensors[0].is_cpu else DEVICE_CHUNK
    if all(tensor.is_contiguous() for tensor in tensors):
        tensors = tuple(tensor.view(-1) for tensor in tensors)
    else:
        size = max(1, size * len(tensors[0]) // tensors[0].numel())
    return zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)


def mean_visits(model: ModelShape, spec: TrainingSpec) -> float:
    """Visits of each expert in a step, where all are equally busy."""
    experts = model.experts
    assert experts is not None  # whose visits are counted
    return spec.global_batch * spec.sequence_length * experts.per_token / experts.count


@torch.no_grad()
def level_(bias: torch.Tensor, visits: torch.Tensor, mean: float, rate: float) -> None:
    """Raise the bias of each expert that was visited less than the mean, and lower the others'.

    A sum of visits is exact up to 2^24, and at least that beyond it.  So up to a mean of 2^24 the
    sign of a difference is exact, however the visits were summed.

    Args:
        bias: fp32 [E].
        visits: of a step, fp32 [E].
        mean: of them.
        rate: by which a bias changes.
    """
    bias.add_(torch.sign(mean - visits).mul_(rate))


class StageUpdate:
    """The update of all that a rank owns, in place; a step that is skipped changes nothing."""

    def __init__(self, build: StageBuild) -> None:
        self._build = build
        self._held = held_tensors(build.model, build.seat.layers)
        self._tensors = [one for one in self._held if not is_empty(owned(one, build.seat))]
        self._recipes = {tensor.name: recipe_of(build.spec, tensor) for tensor in self._tensors}

    def unscale_(self, scale: float) -> None:
        """Divide all gradients that are held by the scale of the loss; visits have none."""
        for tensor in self._held if scale != 1 else ():
            if not tensor.is_counted:
                self._build.buffers.gradients[tensor.name].mul_(1 / scale)

    def apply_(self, norm: float, learning_rate: float, progress: Progress) -> None:
        """Apply the gradients of the buffers, and write the owned rows of what is multiplied.

        All memory is allocated before the first number is written.

        Args:
            norm: of the gradient of the whole plan; if it is not finite nothing is applied.
            learning_rate: of this step.
            progress: before it.

        Raises:
            HalfUpdated: something failed after that; the state is of no step.
        """
        if not math.isfinite(norm) or not self._tensors:
            return
        size, device = self._scratch
        memory = torch.empty(size, device=device)
        try:
            self._write(norm, learning_rate, progress, memory)
        except Exception as error:
            raise HalfUpdated(progress.step, error) from error

    @cached_property
    def _scratch(self) -> tuple[int, torch.device]:
        """What the largest update computes in: how many numbers, and where."""
        shards, gradients = self._build.shards, [self._owned(one)[0] for one in self._tensors]
        sizes = [
            scratch_size(shards[one.name], gradient)
            for one, gradient in zip(self._tensors, gradients, strict=True)
        ]
        return max(sizes), gradients[0].device

    def _owned(self, tensor: Tensor) -> Parts:
        """Owned rows of a tensor's gradient, and of what is multiplied."""
        box, mine = shard(tensor, self._build.seat), owned(tensor, self._build.seat)
        buffers = self._build.buffers
        beside = buffers.gradients[tensor.name], buffers.weights[tensor.name]
        return view(tensor, box, beside, mine)

    def _write(
        self, norm: float, learning_rate: float, progress: Progress, memory: torch.Tensor
    ) -> None:
        build = self._build
        for tensor in self._tensors:
            name, parts = tensor.name, build.shards[tensor.name]
            build.still.before_update(name)
            gradient, multiplied = self._owned(tensor)
            if tensor.is_counted:
                mean = mean_visits(build.model, build.spec)
                level_(parts[0], gradient, mean, build.spec.router_bias_rate)
                continue
            copy = None if build.spec.precision == "fp32" else multiplied
            recipe = self._recipes[name]
            update_(parts, gradient, norm, learning_rate, progress.updates, recipe, copy, memory)
