"""Play episodes to their end, whoever makes the decisions: the learned policy, or chance.

Invariants: an actor sees masked candidates only, and a mask changes no relative order among those
that it keeps; all episodes step together; equal seeds draw equally.
Source: Heddle, Algorithm 1, sections 5.1 (feasibility masking) and 5.4 (decision heads).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import DepthView, Episodes, StageView
from planner.policy.network import BACKBONE, Network
from planner.policy.schema import Array, Bools


class Actor(Protocol):
    """Whatever makes the decisions of episodes."""

    def depths(self, view: DepthView) -> Ints:
        """[R] a depth for each row, or 0 for STOP; only what the mask keeps."""
        ...

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """[R] node class and [R] index of the TP degree of the next stage of each row."""
        ...


def always(_: int) -> bool:
    """No budget ends the rollouts."""
    return True


def play(episodes: Episodes, actor: Actor, fits: Callable[[int], bool] = always) -> None:
    """Build every plan to its end, or as far as `fits` lets so many plans be priced in all."""
    while len(rows := episodes.live) and fits(episodes.evaluations + len(rows)):
        depths = actor.depths(episodes.observe_depths(rows))
        episodes.open(rows, depths)
        stage = 0
        while len(open_rows := rows[depths > stage]):
            view = episodes.observe_stages(open_rows)
            episodes.place(open_rows, *actor.stages(view))
            stage += 1
        opened = rows[depths > 0]
        if len(opened):
            episodes.close(opened)


class UniformActor:
    """Draws every decision uniformly from what is possible: the baseline `random`."""

    def __init__(self, generator: np.random.Generator) -> None:
        """Draw from that generator."""
        self._generator = generator

    def depths(self, view: DepthView) -> Ints:
        """Any depth that is possible, or STOP."""
        return draw_uniform(view.mask, self._generator.random(len(view.rows)))

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """Any node class that is possible, and any degree of it."""
        draws = self._generator.random((2, len(view.rows)))
        classes = draw_uniform(view.class_mask, draws[0])
        every = np.arange(len(classes))
        return classes, draw_uniform(view.mask[every, classes], draws[1])


class PolicyActor:
    """Draws every decision from the network's probabilities."""

    def __init__(
        self,
        network: Network,
        episodes: Episodes,
        generator: np.random.Generator,
        temperatures: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Condition the network on the compositions of these episodes.

        The temperatures are of the first and the last rollout on a composition; those between
        spread evenly on a log scale.  Below 1, likely choices are drawn more often.
        """
        spread = np.geomspace(*temperatures, episodes.each)
        sharpness = np.tile(1 / spread, len(episodes.environments))
        self._sharpness = sharpness.astype(np.float32)[:, None]
        self._network = network
        summary = episodes.summary.astype(np.float32)
        self._film = network.film(summary[:1] if len(episodes.environments) == 1 else summary)
        self._generator = generator
        self._trunk = np.zeros((episodes.rows, BACKBONE), np.float32)

    def depths(self, view: DepthView) -> Ints:
        """A depth or STOP of each row."""
        film = self._film.rows(view.rows)
        trunk = self._network.trunk(view.state, film)
        self._trunk[view.rows] = trunk
        logits = self._network.score("depth", trunk, view.features, film)
        return self.choose("depth", view.rows, logits, view.features, view.mask)

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """A node class of each row, and then a degree of it."""
        film = self._film.rows(view.rows)
        hidden = self._network.stage(self._trunk[view.rows], view.context, film)
        logits = self._network.score("device", hidden, view.device, film)
        classes = self.choose("device", view.rows, logits, view.device, view.class_mask)
        chosen = np.arange(len(classes)), classes
        degrees = view.degree[chosen]
        logits = self._network.score("degree", hidden, degrees, film)
        return classes, self.choose("degree", view.rows, logits, degrees, view.mask[chosen])

    def choose(self, head: str, rows: Ints, logits: Array, candidates: Array, mask: Bools) -> Ints:
        """[R] one of the candidates [R, N, F] that the mask [R, N] keeps, by logits [R, N]."""
        del head, candidates
        return draw(logits * self._sharpness[rows], mask, self._generator.random(len(rows)))


def draw_uniform(mask: Bools, draws: Floats) -> Ints:
    """[R] one of the kept candidates of each row, by a number from 0 to 1."""
    counts = np.cumsum(mask, axis=1)
    wanted = np.floor(draws * counts[:, -1]).astype(np.int64) + 1
    chosen: Ints = (counts >= wanted[:, None]).argmax(axis=1)
    return chosen


def probabilities(logits: Array, mask: Bools) -> Floats:
    """[R, N] of the kept candidates; 0 for the others."""
    kept = np.where(mask, logits, -np.inf).astype(np.float64)
    weights = np.exp(kept - kept.max(axis=1, keepdims=True))
    found: Floats = weights / weights.sum(axis=1, keepdims=True)
    return found


def draw(logits: Array, mask: Bools, draws: Floats) -> Ints:
    """[R] one of the kept candidates of each row, by a number from 0 to 1."""
    ends = np.cumsum(probabilities(logits, mask), axis=1)
    chosen: Ints = (ends > (draws * ends[:, -1])[:, None]).argmax(axis=1)
    return chosen
