"""The balanced cut against all cuts of a small graph."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.baselines.hexiscale.partition import cut


def cliques(*sizes):
    """Heavy edges inside cliques, light ones between."""
    part = np.repeat(np.arange(len(sizes)), sizes)
    edges = np.where(part[:, None] == part[None, :], 1.0, 0.01)
    np.fill_diagonal(edges, 0.0)
    return edges, part


def cut_weight(edges, part):
    """Edge weight between parts."""
    return float(edges[part[:, None] != part[None, :]].sum()) / 2


@pytest.mark.parametrize("seed", range(5))
def test_three_cliques_of_a_small_graph_are_found(seed):
    edges, _ = cliques(3, 3, 3)
    found = cut(np.ones(9), edges, 3, np.random.default_rng(seed))
    cuts = (np.array(row) for row in product(range(3), repeat=9))
    balanced = (row for row in cuts if (np.bincount(row, minlength=3) == 3).all())
    assert cut_weight(edges, found) == pytest.approx(min(cut_weight(edges, r) for r in balanced))


@pytest.mark.parametrize("seed", range(3))
def test_parts_are_balanced_and_none_is_empty(seed):
    random = np.random.default_rng(seed)
    weights = random.choice([1.0, 2.0, 3.0], 40)
    edges = random.random((40, 40))
    edges += edges.T
    np.fill_diagonal(edges, 0.0)
    part = cut(weights, edges, 6, random)
    held = np.bincount(part, weights, minlength=6)
    assert (np.bincount(part, minlength=6) > 0).all()
    assert held.max() <= weights.sum() / 6 + weights.max()
