"""The policy network on torch's tensors, for its gradients.

Invariant: all weights are one vector, so that a gradient is one too.
Source: Heddle, section 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from planner.policy.network import Network, Values, shapes
from planner.policy.schema import FeatureSchema


class TorchNetwork(Network):
    """The forward pass of `Network` with torch's own operations."""

    __slots__ = ()

    def product(self, rows: Values, name: str) -> Values:
        """[R, K] times the weights [K, N] of that name."""
        return rows @ self.weights[name]

    def relu(self, values: Values) -> Values:
        """The positive part."""
        return torch.relu(values)


def initial_weights(schema: FeatureSchema, seed: int) -> Tensor:
    """Weights of a network of that schema before training, as one vector."""
    return weights_of_shapes(shapes(schema), seed)


def weights_of_shapes(wanted: Mapping[str, tuple[int, ...]], seed: int) -> Tensor:
    """Weights before training: He's scale for layers, nothing for biases and for what FiLM adds."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for name, shape in wanted.items():
        if name.endswith(".bias") or name == "film2.weight":
            value = torch.zeros(shape)
        else:
            scale = math.sqrt(2.0 / shape[0])
            if name.endswith(".score"):
                scale *= 0.3  # nearly uniform choices to begin with
            value = torch.randn(shape, generator=generator) * scale
        parts.append(value.reshape(-1))
    return torch.cat(parts).requires_grad_()


def named(weights: Tensor, schema: FeatureSchema) -> dict[str, Tensor]:
    """The parts of a vector of weights by the names of `shapes`; they share its memory."""
    return by_name(weights, shapes(schema))


def by_name(weights: Tensor, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The parts of a vector of weights of these shapes; they share its memory."""
    parts = torch.split(weights, [math.prod(shape) for shape in wanted.values()])
    return {
        name: part.view(shape) for (name, shape), part in zip(wanted.items(), parts, strict=True)
    }


def as_network(weights: Tensor, schema: FeatureSchema, *, uses_film: bool) -> Network:
    """The network in numpy; it shares its memory with the vector and follows its updates."""
    parts = named(weights, schema)
    return Network({name: part.numpy() for name, part in parts.items()}, uses_film)
