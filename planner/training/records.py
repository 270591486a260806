"""Decisions of episodes with all that they were made from, for the objective.

Invariant: the log-probability of every recorded choice can be computed again from its record.
Source: Heddle, section 5.5 (forced depths, one rollout of uniform types).
Legend: N templates begun, S stages, D decisions of a head, A candidates, F features, R episodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import DepthView, Episodes, StageView
from planner.policy.network import Network
from planner.policy.rollouts import PolicyActor, play, probabilities
from planner.policy.schema import HEADS, Array, Bools


class Forcing(NamedTuple):
    """Choices of a batch of rollouts that are not left to the policy."""

    depth: Bools  # [R] the first depth is drawn uniformly
    types: Bools  # [R] all node classes are drawn uniformly


class Decisions(NamedTuple):
    """Decisions of one head."""

    row: Ints  # [D] the rollout
    candidates: Array  # [D, A, F]
    mask: Bools  # [D, A] which of them were possible
    choice: Ints  # [D]
    old: Floats  # [D] log-probability of the choice when it was made
    free: Bools  # [D] whether the policy chose

    def of_rows(self, first: int, stop: int) -> Decisions:
        """Records of rollouts first to stop - 1."""
        own = (first <= self.row) & (self.row < stop)
        columns: list[Any] = [column[own] for column in self]
        return Decisions(*columns)


class Records(NamedTuple):
    """Decisions of one batch of rollouts."""

    state: Array  # [N, S] before each template
    opened: Ints  # [S] which of the N templates each stage belongs to
    context: Array  # [S, F] of each stage
    # of each head, in the order of `HEADS`; N depths, S node classes, S TP degrees
    decisions: tuple[Decisions, ...]

    def of_rows(self, first: int, stop: int) -> Records:
        """The decisions of rollouts first to stop - 1, still with their own row numbers."""
        parts = [made.of_rows(first, stop) for made in self.decisions]
        depths, devices = self.decisions[:2]
        templates = (first <= depths.row) & (depths.row < stop)
        stages = (first <= devices.row) & (devices.row < stop)
        opened = (np.cumsum(templates) - 1)[self.opened[stages]]
        return Records(self.state[templates], opened, self.context[stages], tuple(parts))


class RecordingActor(PolicyActor):
    """Chooses as the policy does, except where it is forced, and records every decision.

    Attributes:
        made: the decisions of each head so far, in parts.
    """

    def __init__(
        self, network: Network, episodes: Episodes, generator: np.random.Generator, forcing: Forcing
    ) -> None:
        """Condition the network on the compositions of these episodes."""
        super().__init__(network, episodes, generator)
        self._forcing = forcing
        self._opened = np.full(episodes.rows, -1)  # the template that is open
        self._begun = 0
        self._states: list[Array] = []
        self._stages: list[tuple[Ints, Array]] = []
        self.made: dict[str, list[Decisions]] = {head: [] for head in HEADS}

    def depths(self, view: DepthView) -> Ints:
        """A depth or STOP of each row; where forced and first, any depth."""
        chosen = super().depths(view)
        self._states.append(view.state)
        self._opened[view.rows] = self._begun + np.arange(len(view.rows))
        self._begun += len(view.rows)
        return chosen

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """A node class of each row, where forced any, and then a degree of it."""
        self._stages.append((self._opened[view.rows], view.context))
        return super().stages(view)

    def choose(self, head: str, rows: Ints, logits: Array, candidates: Array, mask: Bools) -> Ints:
        """[R] one of the kept candidates of each row; forced ones by equal chances."""
        forced, allowed = np.zeros(len(rows), bool), mask
        if head == "depth":
            forced = self._forcing.depth[rows] & (self._opened[rows] < 0) & mask[:, 1:].any(axis=1)
            allowed = mask.copy()
            allowed[forced, 0] = False
        elif head == "device":
            forced = self._forcing.types[rows]
        drawn_by = np.where(forced[:, None], np.float32(0), logits)
        chosen = super().choose(head, rows, drawn_by, candidates, allowed)
        likely = probabilities(logits, mask)[np.arange(len(rows)), chosen]
        old = np.log(np.maximum(likely, 1e-30))
        self.made[head].append(Decisions(rows, candidates, mask, chosen, old, ~forced))
        return chosen

    def records(self) -> Records:
        """All decisions so far."""
        opened, contexts = zip(*self._stages, strict=True)
        return Records(
            np.concatenate(self._states),
            np.concatenate(opened),
            np.concatenate(contexts),
            tuple(
                Decisions(*(np.concatenate(column) for column in zip(*made, strict=True)))
                for made in self.made.values()
            ),
        )


def record(
    network: Network, episodes: Episodes, generator: np.random.Generator, forcing: Forcing
) -> Records:
    """Play rollouts and return their decisions."""
    actor = RecordingActor(network, episodes, generator, forcing)
    play(episodes, actor)
    return actor.records()
