"""The policy network in torch, for its gradients.

Invariant: the same weights give the logits of `planner.policy.network` within float rounding.
Source: Heddle, section 5.4.   Legend: N decisions, A candidates, F features, E compositions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from planner.policy.network import FILMED, Network, shapes
from planner.policy.schema import FeatureSchema


def initial_weights(schema: FeatureSchema, seed: int) -> dict[str, Tensor]:
    """Weights before training: He's scale for layers, nothing for biases and for what FiLM adds."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(schema).items():
        if name.endswith(".bias") or name == "film2.weight":
            value = torch.zeros(shape)
        else:
            scale = math.sqrt(2.0 / shape[0])
            if name.endswith(".score"):
                scale *= 0.3  # nearly uniform choices to begin with
            value = torch.randn(shape, generator=generator) * scale
        weights[name] = value.requires_grad_()
    return weights


def as_network(weights: dict[str, Tensor], *, uses_film: bool) -> Network:
    """The network in numpy; it shares its memory with the tensors and follows their updates."""
    return Network(
        {name: np.asarray(value.detach().numpy()) for name, value in weights.items()}, uses_film
    )


class TorchNetwork:
    """The forward pass on tensors that remember their gradients."""

    def __init__(self, weights: dict[str, Tensor], *, uses_film: bool) -> None:
        """Use those weights, named as in `planner.policy.network.shapes`."""
        self.weights = weights
        self._uses_film = uses_film

    def film(self, summary: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Scale and shift [E, n] of every layer and head; summary [E, Z]."""
        w = self.weights
        hidden = torch.relu(summary @ w["film1.weight"] + w["film1.bias"])
        out = hidden @ w["film2.weight"] + w["film2.bias"]
        if not self._uses_film:
            out = torch.zeros_like(out)
        found = {}
        at = 0
        for name, size in FILMED:
            found[name] = (1 + out[:, at : at + size], out[:, at + size : at + 2 * size])
            at += 2 * size
        return found

    def trunk(self, state: Tensor, film: dict[str, tuple[Tensor, Tensor]], of: Tensor) -> Tensor:
        """The backbone: state [N, S] to [N, H]; `of` [N] is each row's composition."""
        hidden = state
        for name in ("trunk1", "trunk2"):
            scale, shift = film[name]
            linear = hidden @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
            hidden = torch.relu(linear * scale[of] + shift[of])
        return hidden

    def stage(
        self,
        trunk: Tensor,
        opened: Tensor,
        context: Tensor,
        film: dict[str, tuple[Tensor, Tensor]],
        of: Tensor,
    ) -> Tensor:
        """The stage layer: trunk [T, H] taken at `opened` [N], context [N, F] to [N, U]."""
        w = self.weights
        scale, shift = film["stage"]
        linear = (trunk @ w["stage.weight"])[opened] + context @ w["stage.context"]
        return torch.relu((linear + w["stage.bias"]) * scale[of] + shift[of])

    def score(
        self,
        head: str,
        hidden: Tensor,
        candidates: Tensor,
        film: dict[str, tuple[Tensor, Tensor]],
        of: Tensor,
    ) -> Tensor:
        """Logits [N, A] of candidates [N, A, F] under a head."""
        w = self.weights
        scale, shift = film[head]
        query = (hidden @ w[f"{head}.weight"] + w[f"{head}.bias"]) * scale[of] + shift[of]
        keys = (candidates @ w[f"{head}.candidate"]) * scale[of][:, None, :]
        return torch.relu(keys + query[:, None, :]) @ w[f"{head}.score"]
