"""What an update makes larger, the clipped objective and the entropy, and its gradient.

Invariants: decisions that were forced earn nothing; a decision's entropy does not grow with depth;
where the gradients of all compositions agree, the update follows their mean.
Source: Heddle, section 5.5; PPO: Schulman et al. (2017); group baseline: Shao et al. (2024);
PCGrad: Yu et al. (2020).
Legend: N templates begun, S stages, R rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from planner.estimator.tables import Floats, Ints
from planner.policy.schema import Bools
from planner.training.records import Records
from planner.training.torch_network import TorchNetwork


class Judged(NamedTuple):
    """What the network says now of recorded decisions.

    Attributes:
        depth: [N] log-probability of the choice.
        device: [S] likewise.
        degree: [S] likewise.
        entropy: mean over templates of the mean over the decisions of a template.
    """

    depth: Tensor
    device: Tensor
    degree: Tensor
    entropy: Tensor


def advantages(values: Floats, each: int, best_of: int = 1) -> Floats:
    """How each rollout compares with its group of `each`, in standard deviations.

    Args:
        values: [R] of the rollouts, group by group.
        each: rollouts of a group.
        best_of: 1: the value counts, as in the paper; k: what the rollout adds to the best of k
            that are drawn from its group, which is all of it if it is smaller.
    """
    groups = values.reshape(-1, each)
    drawn = min(best_of, each)
    worth = groups if drawn == 1 else _worth_to_best(groups, drawn)
    centred = worth - worth.mean(axis=1, keepdims=True)
    spread = worth.std(axis=1, keepdims=True)
    scale = np.maximum(spread, 1e-3 * np.abs(worth).max(axis=1, keepdims=True) + 1e-12)
    found: Floats = (centred / scale).reshape(-1)
    return found


def _worth_to_best(groups: Floats, best_of: int) -> Floats:
    """Mean of max(0, value - best of k - 1 others) over all choices of these others."""
    each = groups.shape[1]
    others = best_of - 1
    # that the best of the others is the q-th smallest
    likely = np.array([math.comb(q, others - 1) for q in range(each)]) / math.comb(each - 1, others)
    order = np.argsort(groups, axis=1, kind="stable")
    ranked = np.take_along_axis(groups, order, axis=1)
    below = np.tril(np.ones((each, each)), -1) * likely
    worth = ranked * below.sum(axis=1) - ranked @ below.T
    found = np.empty_like(groups)
    np.put_along_axis(found, order, worth, axis=1)
    return found


def judge(network: TorchNetwork, records: Records, summary: Tensor, each: int) -> Judged:
    """Run the network on recorded decisions.

    Args:
        network: the current weights.
        records: rollout r belongs to composition r // each.
        summary: [E, Z] of the compositions.
        each: rollouts of a composition.
    """
    film = network.film(summary)
    of = torch.from_numpy(records.depth_row // each)
    of_stage = torch.from_numpy(records.stage_row // each)
    opened = torch.from_numpy(records.opened)
    trunk = network.trunk(torch.from_numpy(records.state), film, of)
    depth, depth_entropy = _chosen(
        network.score("depth", trunk, torch.from_numpy(records.depths), film, of),
        records.depth_mask,
        records.depth,
    )
    hidden = network.stage(trunk, opened, torch.from_numpy(records.context), film, of_stage)
    device, device_entropy = _chosen(
        network.score("device", hidden, torch.from_numpy(records.devices), film, of_stage),
        records.device_mask,
        records.device,
    )
    degree, degree_entropy = _chosen(
        network.score("degree", hidden, torch.from_numpy(records.degrees), film, of_stage),
        records.degree_mask,
        records.degree,
    )
    in_template = depth_entropy.index_add(0, opened, device_entropy + degree_entropy)
    decisions = torch.ones_like(depth_entropy).index_add(
        0, opened, torch.full_like(device_entropy, 2.0)
    )
    return Judged(depth, device, degree, (in_template / decisions).mean())


def clipped(judged: Judged, records: Records, advantage: Floats, clip: float) -> Tensor:
    """PPO's clipped objective, mean over decisions."""
    total = torch.zeros(())
    count = 0.0
    for now, old, rows, free in (
        (judged.depth, records.depth_old, records.depth_row, records.depth_free),
        (judged.device, records.device_old, records.stage_row, records.device_free),
        (judged.degree, records.degree_old, records.stage_row, np.ones_like(records.device_free)),
    ):
        weight = torch.from_numpy(free)
        gain = torch.from_numpy(advantage[rows].astype(np.float32))
        ratio = torch.exp(now - torch.from_numpy(old.astype(np.float32)))
        kept = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
        total = total + (kept * weight).sum()
        count += float(free.sum())
    return total / max(1.0, count)


def imitated(judged: Judged, records: Records, weight: Floats) -> Tensor:
    """Mean log-likelihood of decisions, each weighted as its rollout is."""
    of_depth = torch.from_numpy(weight[records.depth_row].astype(np.float32))
    of_stage = torch.from_numpy(weight[records.stage_row].astype(np.float32))
    total = (judged.depth * of_depth).sum() + ((judged.device + judged.degree) * of_stage).sum()
    count = len(records.depth_row) + 2.0 * len(records.stage_row)
    return total / max(1.0, count)


def _chosen(logits: Tensor, mask: Bools, choice: Ints) -> tuple[Tensor, Tensor]:
    """Log-probability of the choices, and entropy, both [N]."""
    kept = logits.masked_fill(~torch.from_numpy(mask), -1e9)
    logs = torch.log_softmax(kept, dim=1)
    index = torch.from_numpy(choice)[:, None]
    entropy = -(logs.exp() * logs).sum(dim=1)
    return logs.gather(1, index)[:, 0], entropy


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
