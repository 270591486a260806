"""Choose with the network: masked probabilities, drawn by a seeded generator.

Invariants: a mask changes no relative order among the choices it keeps; equal seeds draw equally.
Source: Heddle, sections 5.1 (feasibility masking) and 5.4 (decision heads).
"""

from __future__ import annotations

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import Constructions, DepthView, FillView, StageView
from planner.policy.network import STAGE, Network
from planner.policy.schema import Array, Bools


class PolicyChooser:
    """Draws every decision from the network's probabilities."""

    def __init__(
        self,
        network: Network,
        constructions: Constructions,
        generator: np.random.Generator,
        temperatures: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Condition the network on the compositions of these constructions.

        Args:
            network: whose probabilities count.
            constructions: that will be played.
            generator: of the draws.
            temperatures: of the first and the last rollout on a composition; those between spread
                evenly on a log scale.  Below 1, likely choices are drawn more often.
        """
        spread = np.geomspace(*temperatures, constructions.each)
        sharpness = np.tile(1 / spread, len(constructions.environments))
        self._sharpness = sharpness.astype(np.float32)[:, None]
        self._network = network
        summary = constructions.summary.astype(np.float32)
        self._film = network.film(summary[:1] if len(constructions.environments) == 1 else summary)
        self._generator = generator
        self._trunk = np.zeros((constructions.rows, 0), np.float32)
        self._stage = np.zeros((constructions.rows, STAGE), np.float32)

    def depths(self, view: DepthView) -> Ints:
        """A depth or STOP of each row."""
        film = self._film.rows(view.rows)
        trunk = self._network.trunk(view.state, film)
        if not self._trunk.shape[1]:
            self._trunk = np.zeros((len(self._trunk), trunk.shape[1]), np.float32)
        self._trunk[view.rows] = trunk
        logits = self._network.score("depth", trunk, view.features, film)
        return draw(
            logits * self._sharpness[view.rows], view.mask, self._generator.random(len(view.rows))
        )

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """A node class of each row, and then a degree of it."""
        film = self._film.rows(view.rows)
        hidden = self._network.stage(self._trunk[view.rows], view.context, film)
        self._stage[view.rows] = hidden
        draws = self._generator.random((2, len(view.rows)))
        logits = self._network.score("device", hidden, view.device, film)
        sharpness = self._sharpness[view.rows]
        classes = draw(logits * sharpness, view.class_mask, draws[0])
        every = np.arange(len(classes))
        candidates = view.degree[every, classes]
        logits = self._network.score("degree", hidden, candidates, film)
        return classes, draw(
            logits * self._sharpness[view.rows], view.mask[every, classes], draws[1]
        )

    def fill(self, view: FillView) -> Ints:
        """A candidate of each row, by the layer of the stage that was placed last."""
        film = self._film.rows(view.rows)
        logits = self._network.score(view.head, self._stage[view.rows], view.features, film)
        return draw(
            logits * self._sharpness[view.rows], view.mask, self._generator.random(len(view.rows))
        )


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
