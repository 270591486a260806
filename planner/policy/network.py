"""The policy network's forward pass, in numpy.

A backbone of two layers reads the state; a third one adds, for each stage, what is placed so far.
Heads score candidates by the candidates' own features.  A small network turns the summary of
the composition into a scale and a shift for every layer and every head (FiLM).
The training runs the same code on torch's tensors (`planner.training.torch_network`), so what both
need is written with what arrays and tensors have in common.
Source: Heddle, section 5.4 (policy network); FiLM: Perez et al. (2018).
Legend: R rows, S Z F features, H backbone, U stage layer, P heads, C node classes, K TP degrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from planner.policy.schema import HEADS, Array, FeatureSchema

Values: TypeAlias = Any  # an array of 32-bit floats; in the training a tensor of torch

BACKBONE = 128
STAGE = 96
HEAD = 64
CONDITION = 64
# What FiLM scales and shifts: layers and heads with their sizes, in the order of its outputs.
FILMED = (
    ("trunk1", BACKBONE),
    ("trunk2", BACKBONE),
    ("stage", STAGE),
    *((head, HEAD) for head in HEADS),
)
MOST_MULTIPLIED = 1 << 18  # multiplications that OpenBLAS leaves to one thread (interface/gemm.c)


def shapes(schema: FeatureSchema) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its name, for networks of that schema."""
    width = schema.widths
    conditioned = 2 * sum(size for _, size in FILMED)
    found: dict[str, tuple[int, ...]] = {
        "film1.weight": (width["summary"], CONDITION),
        "film1.bias": (CONDITION,),
        "film2.weight": (CONDITION, conditioned),
        "film2.bias": (conditioned,),
        "trunk1.weight": (width["state"], BACKBONE),
        "trunk1.bias": (BACKBONE,),
        "trunk2.weight": (BACKBONE, BACKBONE),
        "trunk2.bias": (BACKBONE,),
        "stage.weight": (BACKBONE, STAGE),
        "stage.context": (width["stage"], STAGE),
        "stage.bias": (STAGE,),
    }
    for head in HEADS:
        found |= shapes_of_head(head, BACKBONE if head == "depth" else STAGE, width[head])
    return found


def shapes_of_head(head: str, layer: int, features: int) -> dict[str, tuple[int, ...]]:
    """The same of one head, on a layer of that size, with so many features of a candidate."""
    return {
        f"{head}.weight": (layer, HEAD),
        f"{head}.candidate": (features, HEAD),
        f"{head}.bias": (HEAD,),
        f"{head}.score": (HEAD,),
    }


@dataclass(frozen=True, slots=True)
class Film:
    """Scale and shift of every layer and head, for some rows."""

    of: Mapping[str, tuple[Values, Values]]  # {name: ([E, n], [E, n])} of E compositions
    # [R] which of them each row has; None: as they come, or the only one for all
    composition: Values | None = None

    def rows(self, composition: Values) -> Film:
        """Entries of rows with these compositions."""
        if len(self.of["stage"][0]) == 1:
            return self
        return Film(self.of, composition)

    def __getitem__(self, name: str) -> tuple[Values, Values]:
        """Scale and shift [R, n] of a layer or a head."""
        scale, shift = self.of[name]
        if self.composition is None:
            return scale, shift
        return scale[self.composition], shift[self.composition]


@dataclass(frozen=True, slots=True)
class Network:
    """Weights, and the forward pass with them."""

    weights: Mapping[str, Values]  # by the names of `shapes`
    uses_film: bool = True  # whether the summary conditions the layers; else it is not read

    def product(self, rows: Values, name: str) -> Values:
        """[R, K] times the weights [K, N] of that name."""
        return product(rows, self.weights[name])

    def relu(self, values: Values) -> Values:
        """The positive part."""
        return np.maximum(values, 0)

    def film(self, summary: Values) -> Film:
        """Scales and shifts for compositions; summary [E, Z]."""
        w = self.weights
        hidden = self.relu(self.product(summary, "film1.weight") + w["film1.bias"])
        out = self.product(hidden, "film2.weight") + w["film2.bias"]
        if not self.uses_film:
            out = 0 * out
        found: dict[str, tuple[Values, Values]] = {}
        at = 0
        for name, size in FILMED:
            found[name] = (1 + out[:, at : at + size], out[:, at + size : at + 2 * size])
            at += 2 * size
        return Film(found)

    def trunk(self, state: Values, film: Film) -> Values:
        """The backbone: state [R, S] to [R, H]."""
        hidden = state
        for name in ("trunk1", "trunk2"):
            scale, shift = film[name]
            linear = self.product(hidden, f"{name}.weight") + self.weights[f"{name}.bias"]
            hidden = self.relu(linear * scale + shift)
        return hidden

    def stage(self, trunk: Values, context: Values, film: Film) -> Values:
        """The stage layer: [R, H] and [R, F] to [R, U]."""
        scale, shift = film["stage"]
        linear = self.product(trunk, "stage.weight") + self.product(context, "stage.context")
        return self.relu((linear + self.weights["stage.bias"]) * scale + shift)

    def score(self, head: str, hidden: Values, candidates: Values, film: Film) -> Values:
        """Logits [R, N] of candidates [R, N, F] under a head."""
        scale, shift = film[head]
        query = self.product(hidden, f"{head}.weight") + self.weights[f"{head}.bias"]
        query = query * scale + shift
        flat = self.product(candidates.reshape(-1, candidates.shape[-1]), f"{head}.candidate")
        keys = flat.reshape(*candidates.shape[:-1], HEAD) * scale[:, None, :]
        return self.relu(keys + query[:, None, :]) @ self.weights[f"{head}.score"]


def product(rows: Array, weights: Array) -> Array:
    """[R, K] times [K, N] on one thread, up to the order of numpy's sums: a few rows at a time.

    A policy's matrices are small: a second thread gains nothing, and on a busy machine the first
    one waits for it ten times as long as the product takes.
    """
    few = max(1, MOST_MULTIPLIED // weights.size)
    if len(rows) <= few:
        found: Array = rows @ weights
        return found
    out = np.empty((len(rows), weights.shape[1]), rows.dtype)
    for first in range(0, len(rows), few):
        np.matmul(rows[first : first + few], weights, out=out[first : first + few])
    return out
