"""A balanced cut of a complete graph into parts with little weight between them.

Vertices go to the lightest part, heavy ones first, equal ones in random order; then each moves to
the part that it has most edge weight to, where that keeps the balance, and pairs of equal weight
change places, until neither gains.
Source: Karypis and Kumar's multilevel k-way cut, its refinement alone; the graphs here are small.
"""

from __future__ import annotations

import numpy as np

IMBALANCE = 1.03  # times the mean weight of a part, or what the first parts have
PASSES = 8
SLIGHT = 1e-12  # edge weight that is no gain


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
    order = order[np.argsort(-weights[order], kind="stable")]
    part = np.zeros(count, np.int64)
    held = np.zeros(parts)
    size = np.zeros(parts, np.int64)
    for place, vertex in enumerate(order):
        # the heaviest vertices open the parts, so that none is empty
        chosen = place if place < parts else int(np.argmin(held))
        part[vertex] = chosen
        held[chosen] += weights[vertex]
        size[chosen] += 1
    mean = weights.sum() / parts
    bounds = min((2 - IMBALANCE) * mean, held.min()), max(IMBALANCE * mean, held.max())
    gains = np.zeros((count, parts))
    for index in range(parts):
        gains[:, index] = edges[:, part == index].sum(axis=1)
    state = _Cut(weights, edges, part, held, size, gains, bounds)
    for _ in range(PASSES):
        if not state.move(order) and not state.swap():
            break
    return part


class _Cut:
    """A cut that is refined in place."""

    def __init__(
        self,
        weights: np.ndarray,
        edges: np.ndarray,
        part: np.ndarray,
        held: np.ndarray,
        size: np.ndarray,
        gains: np.ndarray,
        bounds: tuple[float, float],
    ) -> None:
        self.weights, self.edges, self.part, self.held = weights, edges, part, held
        self.size, self.gains, self.bounds = size, gains, bounds

    def _put(self, vertex: int, new: int) -> None:
        old = self.part[vertex]
        self.part[vertex] = new
        self.held[old] -= self.weights[vertex]
        self.held[new] += self.weights[vertex]
        self.size[old] -= 1
        self.size[new] += 1
        self.gains[:, old] -= self.edges[:, vertex]
        self.gains[:, new] += self.edges[:, vertex]

    def move(self, order: np.ndarray) -> bool:
        """Each vertex to the part that it has most edge weight to; whether any moved."""
        moved = False
        for vertex in order:
            old = self.part[vertex]
            least, most = self.bounds
            if self.size[old] == 1 or self.held[old] - self.weights[vertex] < least:
                continue
            fits = self.held + self.weights[vertex] <= most
            value = np.where(fits, self.gains[vertex], -np.inf)
            value[old] = self.gains[vertex, old]
            new = int(np.argmax(value))
            if value[new] > self.gains[vertex, old] + SLIGHT:
                self._put(vertex, new)
                moved = True
        return moved

    def swap(self) -> bool:
        """The best exchange of two vertices of equal weight, again and again; whether any was."""
        count, swapped = len(self.part), False
        alike = self.weights[:, None] == self.weights[None, :]
        for _ in range(count):
            rows = np.arange(count)
            better = self.gains - self.gains[rows, self.part][:, None]
            value = better[:, self.part] + better[:, self.part].T - 2 * self.edges
            value = np.where(alike & (self.part[:, None] != self.part[None, :]), value, -np.inf)
            one, other = np.unravel_index(int(np.argmax(value)), value.shape)
            if value[one, other] <= SLIGHT:
                break
            first, second = int(self.part[one]), int(self.part[other])
            self._put(int(one), second)
            self._put(int(other), first)
            swapped = True
        return swapped
