"""Objective of an update: the clipped objective and the entropy, and gradients that agree.

Invariants: decisions that were forced earn nothing; a decision's entropy does not grow with depth;
where the gradients of all compositions agree, the update follows their mean.
Source: Heddle, section 5.5; PPO: Schulman et al. (2017); group baseline: Shao et al. (2024);
PCGrad: Yu et al. (2020).
Legend: R rollouts, D decisions of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from planner.estimator.tables import Floats, Ints
from planner.policy.schema import HEADS, Bools
from planner.training.records import Records
from planner.training.torch_network import TorchNetwork


class Judged(NamedTuple):
    """The network's present view of recorded decisions."""

    # of each head [D] log-probabilities of its choices, in the order of `HEADS`
    logs: tuple[Tensor, ...]
    # mean over templates of the mean over the decisions of a template; or over all decisions
    entropy: Tensor


def advantages(values: Floats, each: int, best_of: int = 1) -> Floats:
    """How each rollout [R] compares with its group of `each`, in standard deviations.

    With `best_of` 1 its value counts, as in the paper; with k what it adds to the best of k that
    are drawn from its group, which is all of it if it is smaller.
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


def judge(
    network: TorchNetwork,
    records: Records,
    summary: Tensor,
    each: int,
    *,
    divides_entropy: bool = True,
) -> Judged:
    """Run the network on recorded decisions; rollout r is on composition r // each of [E, Z].

    With `divides_entropy` every template counts alike; without, every decision does, and depth
    earns more.
    """
    depths, devices, _ = records.decisions
    film = network.film(summary)
    of_templates = film.rows(torch.from_numpy(depths.row // each))
    of_stages = film.rows(torch.from_numpy(devices.row // each))
    opened = torch.from_numpy(records.opened)
    trunk = network.trunk(torch.from_numpy(records.state), of_templates)
    hidden = network.stage(trunk[opened], torch.from_numpy(records.context), of_stages)
    logs, entropies = [], []
    inputs = ((trunk, of_templates), (hidden, of_stages), (hidden, of_stages))
    for head, made, (inner, own) in zip(HEADS, records.decisions, inputs, strict=True):
        logits = network.score(head, inner, torch.from_numpy(made.candidates), own)
        log, entropy = log_and_entropy(logits, made.mask, made.choice)
        logs.append(log)
        entropies.append(entropy)
    in_template = entropies[0].index_add(0, opened, entropies[1] + entropies[2])
    stages = torch.bincount(opened, minlength=len(in_template))
    number = 1 + 2 * stages
    entropy = (in_template / number).mean()
    if not divides_entropy:
        entropy = in_template.sum() / number.sum()
    return Judged(tuple(logs), entropy)


def clipped(judged: Judged, records: Records, advantage: Floats, clip: float) -> Tensor:
    """PPO's clipped objective, mean over the decisions that were free."""
    total = torch.zeros(())
    for now, made in zip(judged.logs, records.decisions, strict=True):
        gain = torch.from_numpy(advantage[made.row].astype(np.float32))
        ratio = torch.exp(now - torch.from_numpy(made.old.astype(np.float32)))
        kept = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
        total = total + (kept * torch.from_numpy(made.free)).sum()
    return total / max(1, sum(int(made.free.sum()) for made in records.decisions))


def imitated(judged: Judged, records: Records, weight: Floats) -> Tensor:
    """Mean log-likelihood of decisions, each weighted as its rollout is."""
    total = torch.zeros(())
    for now, made in zip(judged.logs, records.decisions, strict=True):
        total = total + (now * torch.from_numpy(weight[made.row].astype(np.float32))).sum()
    return total / max(1, sum(len(made.row) for made in records.decisions))


def log_and_entropy(logits: Tensor, mask: Bools, choice: Ints) -> tuple[Tensor, Tensor]:
    """Log-probability of the choices, and entropy, both [N]."""
    kept = logits.masked_fill(~torch.from_numpy(mask), -1e9)
    logs = torch.log_softmax(kept, dim=1)
    index = torch.from_numpy(choice)[:, None]
    entropy = -(logs.exp() * logs).sum(dim=1)
    return logs.gather(1, index)[:, 0], entropy


def without_conflicts(gradients: Sequence[Tensor], generator: np.random.Generator) -> Tensor:
    """The mean of the clusters' flat gradients, each without what opposes another, in any order."""
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
