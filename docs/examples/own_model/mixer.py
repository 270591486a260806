"""A model of no family with a loss of its own: gated causal convolutions, and a penalty on logits.

Legend: b micro-batch, S sequence, h hidden, c channels, K width of a kernel, V vocabulary, t TP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from planner.model.shape import ModelShape
from worker.model.model import Layer
from worker.model.own import Loss, OwnModel
from worker.model.parallel import TensorParallel
from worker.training_settings import IGNORED

HIDDEN, CHANNELS, KERNEL, VOCABULARY, BLOCKS = 32, 64, 4, 256, 4
PENALTY = 1e-2  # of the squared logarithm of the sum of exponentials, so that logits stay small
EPSILON = 1e-6


class Embedding(Layer):
    """Whole on every rank of a TP group."""

    weight: torch.Tensor  # [V, h]

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S] token ids -> [b, S, h]."""
        return functional.embedding(x, self.weight)


class Mixer(Layer):
    """Each channel mixes the last K tokens, and another one gates it; channels are cut by TP."""

    norm: torch.Tensor  # [h]
    into: torch.Tensor  # [c / t, h]
    gate: torch.Tensor  # [c / t, h]
    kernel: torch.Tensor  # [c / t, K]
    back: torch.Tensor  # [h, c / t]

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S, h] -> [b, S, h]."""
        h = self.tp.copy(functional.rms_norm(x, self.norm.shape, self.norm, EPSILON))
        mixed = causal(functional.linear(h, self.into), self.kernel)
        gated = mixed * functional.silu(functional.linear(h, self.gate))
        return x + self.tp.reduce(functional.linear(gated, self.back))


class Head(Layer):
    """Logits of the whole vocabulary on every rank of a TP group."""

    norm: torch.Tensor  # [h]
    weight: torch.Tensor  # [V, h]

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """[b, S, h] -> [b, S, V]."""
        x = functional.rms_norm(x, self.norm.shape, self.norm, EPSILON)
        return functional.linear(x, self.weight)


def causal(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Each token's sum over the last K of each channel: [b, S, c] and [c, K] -> [b, S, c]."""
    length = x.shape[1]
    back = (functional.pad(x, (0, 0, k, 0))[:, :length] for k in range(kernel.shape[1]))
    return torch.stack([kernel[:, k] * shifted for k, shifted in enumerate(back)]).sum(0)


def loss(_tp: TensorParallel) -> Loss:
    """Cross entropy and the penalty, the mean over all labels that are not IGNORED."""

    def mean(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        learnt = labels != IGNORED
        total = logits.logsumexp(-1)
        target = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        each = total - target + PENALTY * total.square()
        return (each * learnt).sum() / learnt.sum().clamp(min=1)

    return mean


def model() -> OwnModel:
    """The entry point: `mixer:model`."""
    shape = ModelShape(
        name="mixer",
        layers=BLOCKS,
        hidden=HIDDEN,
        heads=4,
        kv_heads=4,
        ffn=CHANNELS,
        vocab=VOCABULARY,
    )
    wide, narrow = (CHANNELS, HIDDEN), (HIDDEN, CHANNELS)
    return OwnModel(
        shape,
        layers={"embedding": Embedding, "block": Mixer, "head": Head},
        tensors={
            "embedding": {"weight": ((VOCABULARY, HIDDEN), None)},
            "block": {
                "norm": ((HIDDEN,), None),
                "into": (wide, 0),
                "gate": (wide, 0),
                "kernel": ((CHANNELS, KERNEL), 0),
                "back": (narrow, 1),
            },
            "head": {"norm": ((HIDDEN,), None), "weight": ((VOCABULARY, HIDDEN), None)},
        },
        loss=loss,
    )
