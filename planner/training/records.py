"""Decisions of episodes with all that they were made from, for the objective.

Invariant: the log-probability of every recorded choice can be computed again from its record.
Source: Heddle, section 5.5 (forced depths, one rollout of uniform types).
Legend: N templates begun, S stages, A candidates, F features, R episodes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import DepthView, Episodes, StageView
from planner.policy.network import BACKBONE, Film, Network
from planner.policy.rollouts import draw, play, probabilities
from planner.policy.schema import Array, Bools


class Forcing(NamedTuple):
    """What is not left to the policy in a batch of rollouts.

    Attributes:
        depth: [R] the first depth is drawn uniformly.
        types: [R] all node classes are drawn uniformly.
    """

    depth: Bools
    types: Bools


@dataclass(frozen=True)
class Records:
    """Decisions of one batch of rollouts.

    Attributes:
        depth_row: [N] the rollout.
        state: [N, S].
        depths: [N, A, F] candidates.
        depth_mask: [N, A].
        depth: [N] the choice.
        depth_old: [N] its log-probability when it was made.
        depth_free: [N] 1 where the policy chose.
        stage_row: [S] the rollout.
        opened: [S] which of the N began this stage's template.
        context: [S, F].
        devices: [S, A, F] candidates.
        device_mask: [S, A].
        device: [S] the choice.
        device_old: [S].
        device_free: [S].
        degrees: [S, A, F] candidates of the chosen node class.
        degree_mask: [S, A].
        degree: [S] the choice.
        degree_old: [S].
    """

    depth_row: Ints
    state: Array
    depths: Array
    depth_mask: Bools
    depth: Ints
    depth_old: Floats
    depth_free: Array
    stage_row: Ints
    opened: Ints
    context: Array
    devices: Array
    device_mask: Bools
    device: Ints
    device_old: Floats
    device_free: Array
    degrees: Array
    degree_mask: Bools
    degree: Ints
    degree_old: Floats

    def of_rows(self, first: int, stop: int) -> Records:
        """The decisions of rollouts first to stop - 1, still with their own row numbers."""
        templates = (self.depth_row >= first) & (self.depth_row < stop)
        stages = (self.stage_row >= first) & (self.stage_row < stop)
        parts = {
            field.name: getattr(self, field.name)[stages if _is_of_stage(field.name) else templates]
            for field in fields(self)
        }
        parts["opened"] = (np.cumsum(templates) - 1)[parts["opened"]]
        return Records(**parts)


def _is_of_stage(name: str) -> bool:
    return name.startswith(("stage", "opened", "context", "device", "degree"))


class RecordingActor:
    """Chooses as the policy does, except where it is forced, and records every decision."""

    def __init__(
        self,
        network: Network,
        episodes: Episodes,
        generator: np.random.Generator,
        forcing: Forcing,
    ) -> None:
        """Condition the network on the compositions of these episodes."""
        self._network = network
        self._film: Film = network.film(episodes.summary.astype(np.float32))
        self._generator = generator
        self._forcing = forcing
        self._trunk: Array = np.zeros((episodes.rows, BACKBONE), np.float32)
        self._opened = np.full(episodes.rows, -1)
        self._begun = 0
        self._templates: list[tuple[Any, ...]] = []
        self._stages: list[tuple[Any, ...]] = []

    def depths(self, view: DepthView) -> Ints:
        """A depth or STOP of each row; where forced and first, any depth."""
        film = self._film.rows(view.rows)
        trunk = self._network.trunk(view.state, film)
        self._trunk[view.rows] = trunk
        draws = self._generator.random((2, len(view.rows)))
        logits = self._network.score("depth", trunk, view.features, film)
        chosen = draw(logits, view.mask, draws[0])
        deep = view.mask.copy()
        deep[:, 0] = False
        is_first = self._opened[view.rows] < 0
        forced = self._forcing.depth[view.rows] & is_first & deep.any(axis=1)
        chosen[forced] = draw(np.zeros_like(logits)[forced], deep[forced], draws[1][forced])
        self._record_depths(view, chosen, _log_of(logits, view.mask, chosen), ~forced)
        return chosen

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """A node class of each row, and then a degree of it."""
        film = self._film.rows(view.rows)
        hidden = self._network.stage(self._trunk[view.rows], view.context, film)
        draws = self._generator.random((2, len(view.rows)))
        logits = self._network.score("device", hidden, view.device, film)
        mask = view.class_mask
        forced = self._forcing.types[view.rows]
        classes = draw(np.where(forced[:, None], np.float32(0), logits), mask, draws[0])
        every = np.arange(len(classes))
        degree_logits = self._network.score("degree", hidden, view.degree[every, classes], film)
        degree_mask = view.mask[every, classes]
        degrees = draw(degree_logits, degree_mask, draws[1])
        logs = _log_of(logits, mask, classes), _log_of(degree_logits, degree_mask, degrees)
        self._record_stages(view, classes, degrees, logs, ~forced)
        return classes, degrees

    def _record_depths(self, view: DepthView, chosen: Ints, logs: Floats, free: Bools) -> None:
        self._opened[view.rows] = self._begun + np.arange(len(view.rows))
        self._begun += len(view.rows)
        made = (view.state, view.features, view.mask, chosen, logs, free.astype(np.float32))
        self._templates.append((view.rows, *made))

    def _record_stages(
        self,
        view: StageView,
        classes: Ints,
        degrees: Ints,
        logs: tuple[Floats, Floats],
        free: Bools,
    ) -> None:
        every = np.arange(len(classes))
        device = (view.device, view.class_mask, classes, logs[0], free.astype(np.float32))
        degree = (view.degree[every, classes], view.mask[every, classes], degrees, logs[1])
        made = (view.rows, self._opened[view.rows], view.context, *device, *degree)
        self._stages.append(made)

    def records(self) -> Records:
        """All decisions so far."""
        templates = [np.concatenate(column) for column in zip(*self._templates, strict=True)]
        stages = [np.concatenate(column) for column in zip(*self._stages, strict=True)]
        return Records(*templates, *stages)


def record(
    network: Network, episodes: Episodes, generator: np.random.Generator, forcing: Forcing
) -> Records:
    """Play rollouts and return their decisions."""
    actor = RecordingActor(network, episodes, generator, forcing)
    play(episodes, actor)
    return actor.records()


def _log_of(logits: Array, mask: Bools, chosen: Ints) -> Floats:
    """[R] log-probability of the choices."""
    likely = probabilities(logits, mask)[np.arange(len(chosen)), chosen]
    found: Floats = np.log(np.maximum(likely, 1e-30))
    return found
