"""The update of weights and moments, as a function of its arguments.

Training and recovery apply the same one.  DeepSpeed's engine holds an optimizer that it never
steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim.adam import adam

from worker.contract import TrainingSpec
from worker.engine.seam import Parts


@torch.no_grad()
def update_(
    shards: Sequence[Parts],
    gradients: Sequence[torch.Tensor],
    spec: TrainingSpec,
    learning_rate: float,
    updates: int,
) -> None:
    """Apply one update in place, every element on its own: bits do not depend on the cut.

    Args:
        shards: (weight, exp_avg, exp_avg_sq) each.
        gradients: summed over the plan and clipped, as many.
        spec: betas and epsilon.
        learning_rate: of this update.
        updates: applied before this one; not the step, which counts skipped ones too.
    """
    weights, means, squares = ([parts[i] for parts in shards] for i in range(3))
    counts = [torch.tensor(float(updates)) for _ in shards]
    adam(
        weights,
        list(gradients),
        means,
        squares,
        [],
        counts,
        foreach=True,
        amsgrad=False,
        beta1=spec.betas[0],
        beta2=spec.betas[1],
        lr=learning_rate,
        weight_decay=0.0,
        eps=spec.epsilon,
        maximize=False,
    )
