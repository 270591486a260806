"""The policy network's forward pass, in numpy.

A backbone of two layers reads the state; a third one adds, for each stage, what is placed so far.
Heads score candidates by the candidates' own features.  A small network turns the summary of
the composition into a scale and a shift for every layer and every head (FiLM).
Invariant: equal to `planner.training.torch_network` within the rounding of 32-bit floats.
Source: Heddle, section 5.4 (policy network); FiLM: Perez et al. (2018).
Legend: R rows, S Z F features, H backbone, U stage layer, P heads, C node classes, K TP degrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.policy.schema import HEADS, Array, FeatureSchema

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
        size = BACKBONE if head == "depth" else STAGE
        found[f"{head}.weight"] = (size, HEAD)
        found[f"{head}.candidate"] = (width[head], HEAD)
        found[f"{head}.bias"] = (HEAD,)
        found[f"{head}.score"] = (HEAD,)
    return found


@dataclass(frozen=True, slots=True)
class Film:
    """Scale and shift of every layer and head: {name: ([R, n], [R, n])}; R may be 1 for all."""

    of: Mapping[str, tuple[Array, Array]]

    def rows(self, rows: NDArray[np.int64]) -> Film:
        """Those of some rows."""
        if len(self.of["stage"][0]) == 1:
            return self
        return Film({name: (scale[rows], shift[rows]) for name, (scale, shift) in self.of.items()})


@dataclass(frozen=True, slots=True)
class Network:
    """Trained weights.

    Attributes:
        weights: by the names of `shapes`.
        uses_film: whether the summary conditions the layers; else it is not read.
    """

    weights: Mapping[str, Array]
    uses_film: bool = True

    def film(self, summary: Array) -> Film:
        """Scales and shifts for compositions; summary [R, Z]."""
        w = self.weights
        hidden = _relu(product(summary, w["film1.weight"]) + w["film1.bias"])
        out = product(hidden, w["film2.weight"]) + w["film2.bias"]
        if not self.uses_film:
            out = np.zeros_like(out)
        found: dict[str, tuple[Array, Array]] = {}
        at = 0
        for name, size in FILMED:
            found[name] = (1 + out[:, at : at + size], out[:, at + size : at + 2 * size])
            at += 2 * size
        return Film(found)

    def trunk(self, state: Array, film: Film) -> Array:
        """The backbone: state [R, S] to [R, H]."""
        hidden = state
        for name in ("trunk1", "trunk2"):
            scale, shift = film.of[name]
            linear = product(hidden, self.weights[f"{name}.weight"]) + self.weights[f"{name}.bias"]
            hidden = _relu(linear * scale + shift)
        return hidden

    def stage(self, trunk: Array, context: Array, film: Film) -> Array:
        """The stage layer: [R, H] and [R, F] to [R, U]."""
        w = self.weights
        scale, shift = film.of["stage"]
        linear = product(trunk, w["stage.weight"]) + product(context, w["stage.context"])
        return _relu((linear + w["stage.bias"]) * scale + shift)

    def score(self, head: str, hidden: Array, candidates: Array, film: Film) -> Array:
        """Logits [R, N] of candidates [R, N, F] under a head."""
        w = self.weights
        scale, shift = film.of[head]
        query = (product(hidden, w[f"{head}.weight"]) + w[f"{head}.bias"]) * scale + shift
        width = candidates.shape[-1]
        flat = product(candidates.reshape(-1, width), w[f"{head}.candidate"])
        keys = flat.reshape(*candidates.shape[:-1], HEAD)
        keys *= scale[:, None, :]
        keys += query[:, None, :]
        np.maximum(keys, 0, out=keys)
        logits: Array = keys @ w[f"{head}.score"]
        return logits


def _relu(values: Array) -> Array:
    positive: Array = np.maximum(values, 0)
    return positive


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
