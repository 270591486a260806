"""A balanced cut of a complete graph into parts with little weight between them.

Vertices go to the lightest part in random order; then each moves to the part that it has most edge
weight to, where that keeps the balance, until a pass moves none.
Source: Karypis and Kumar's multilevel k-way cut, its refinement alone; the graphs here are small.
"""

from __future__ import annotations

import numpy as np

IMBALANCE = 1.03  # times the mean weight of a part, or one vertex more
PASSES = 8


def cut(
    weights: np.ndarray, edges: np.ndarray, parts: int, random: np.random.Generator
) -> np.ndarray:
    """The part of each vertex; no part is empty.

    Args:
        weights: [V] of vertices.
        edges: [V, V] symmetric, 0 on the diagonal; heavy ones are to be inside parts.
        parts: how many, at most V.
        random: shuffles the vertices.
    """
    count = len(weights)
    order = random.permutation(count)
    part = np.zeros(count, np.int64)
    held = np.zeros(parts)
    size = np.zeros(parts, np.int64)
    for place, vertex in enumerate(order):
        # the first vertices open the parts, so that none is empty
        chosen = place if place < parts else int(np.argmin(held))
        part[vertex] = chosen
        held[chosen] += weights[vertex]
        size[chosen] += 1
    most = max(IMBALANCE * weights.sum() / parts, weights.sum() / parts + weights.max())
    gains = np.zeros((count, parts))
    for index in range(parts):
        gains[:, index] = edges[:, part == index].sum(axis=1)
    for _ in range(PASSES):
        moved = 0
        for vertex in order:
            old = part[vertex]
            if size[old] == 1:
                continue
            value = np.where(held + weights[vertex] <= most, gains[vertex], -np.inf)
            value[old] = gains[vertex, old]
            new = int(np.argmax(value))
            if value[new] <= gains[vertex, old] * (1 + 1e-12):
                continue
            part[vertex] = new
            held[old] -= weights[vertex]
            held[new] += weights[vertex]
            size[old] -= 1
            size[new] += 1
            gains[:, old] -= edges[:, vertex]
            gains[:, new] += edges[:, vertex]
            moved += 1
        if not moved:
            break
    return part


def cut_weight(edges: np.ndarray, part: np.ndarray) -> float:
    """Edge weight between parts."""
    return float(edges[part[:, None] != part[None, :]].sum()) / 2
