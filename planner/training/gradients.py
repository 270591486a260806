"""Gradients of several compositions, made to agree before they are summed.

Invariant: where all gradients agree, the result is their mean.
Source: Heddle, section 5.5; PCGrad: Yu et al. (2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def without_conflicts(gradients: Sequence[Tensor], generator: np.random.Generator) -> Tensor:
    """The mean of flat gradients, each without what opposes another.

    Args:
        gradients: one flat vector per cluster of compositions.
        generator: draws the order in which each looks at the others.
    """
    kept = []
    for index, gradient in enumerate(gradients):
        own = gradient.clone()
        others = [j for j in range(len(gradients)) if j != index]
        for j in generator.permutation(others) if others else ():
            other = gradients[int(j)]
            along = torch.dot(own, other)
            if along < 0:
                own -= along / torch.dot(other, other).clamp_min(1e-20) * other
        kept.append(own)
    return torch.stack(kept).mean(dim=0)


def flat_gradient(objective: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The gradient of an objective with respect to all weights, as one vector."""
    parts = torch.autograd.grad(objective, list(weights), allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(weight) if part is None else part).reshape(-1)
            for part, weight in zip(parts, weights, strict=True)
        ]
    )
