"""Decisions of constructions with all that they were made from, for the objective.

Invariant: the log-probability of every recorded choice can be computed again from its record.
Source: Heddle, section 5.5 (forced depths, one rollout of uniform types).
Legend: N templates begun, S stages, A candidates, F features, R constructions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import Constructions, DepthView, FillView, StageView
from planner.policy.network import STAGE, Film, Network
from planner.policy.rollouts import play
from planner.policy.sampling import draw, probabilities
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
class FillRecords:
    """Decisions of one head of the fill, where it had more than one candidate.

    Attributes:
        head: of the network.
        row: [P] the rollout.
        placed: [P] which of the S stages was placed last.
        features: [P, A, F] candidates.
        mask: [P, A].
        choice: [P].
        old: [P] its log-probability when it was made.
    """

    head: str
    row: Ints
    placed: Ints
    features: Array
    mask: Bools
    choice: Ints
    old: Floats


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
        fill: one for each head of the fill that is chosen.
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
    fill: tuple[FillRecords, ...] = ()

    def of_rows(self, first: int, stop: int) -> Records:
        """The decisions of rollouts first to stop - 1, still with their own row numbers."""
        templates = (self.depth_row >= first) & (self.depth_row < stop)
        stages = (self.stage_row >= first) & (self.stage_row < stop)
        renumbered = np.cumsum(templates) - 1
        parts = {
            field.name: getattr(self, field.name)[stages if _is_of_stage(field.name) else templates]
            for field in fields(self)
            if field.name != "fill"
        }
        parts["opened"] = renumbered[parts["opened"]]
        placed = np.cumsum(stages) - 1
        return Records(**parts, fill=tuple(_part(one, first, stop, placed) for one in self.fill))


def _part(one: FillRecords, first: int, stop: int, renumbered: Ints) -> FillRecords:
    kept = (one.row >= first) & (one.row < stop)
    mask = one.mask[kept]
    used = int(np.flatnonzero(mask.any(axis=0)).max(initial=0)) + 1  # others may have had more
    return FillRecords(
        one.head,
        one.row[kept],
        renumbered[one.placed[kept]],
        one.features[kept, :used],
        mask[:, :used],
        one.choice[kept],
        one.old[kept],
    )


def _is_of_stage(name: str) -> bool:
    return name.startswith(("stage", "opened", "context", "device", "degree"))


class RecordingChooser:
    """Chooses as the policy does, except where it is forced, and records every decision."""

    def __init__(
        self,
        network: Network,
        constructions: Constructions,
        generator: np.random.Generator,
        forcing: Forcing,
    ) -> None:
        """Condition the network on the compositions of these constructions."""
        self._network = network
        self._film: Film = network.film(constructions.summary.astype(np.float32))
        self._generator = generator
        self._forcing = forcing
        self._trunk: Array = np.zeros((constructions.rows, 1), np.float32)
        self._opened = np.full(constructions.rows, -1)
        self._begun = 0
        self._templates: list[tuple[object, ...]] = []
        self._stages: list[tuple[object, ...]] = []
        self._stage: Array = np.zeros((constructions.rows, STAGE), np.float32)
        self._last = np.full(constructions.rows, -1)
        self._placed = 0
        self._fill: dict[str, list[tuple[Any, ...]]] = {}

    def depths(self, view: DepthView) -> Ints:
        """A depth or STOP of each row; where forced and first, any depth."""
        film = self._film.rows(view.rows)
        state = view.state
        features = view.features
        trunk = self._network.trunk(state, film)
        if self._begun == 0:
            self._trunk = np.zeros((len(self._trunk), trunk.shape[1]), np.float32)
        self._trunk[view.rows] = trunk
        draws = self._generator.random((2, len(view.rows)))
        logits = self._network.score("depth", trunk, features, film)
        chosen = draw(logits, view.mask, draws[0])
        forced = self._forcing.depth[view.rows] & (self._opened[view.rows] < 0)
        deep = view.mask.copy()
        deep[:, 0] = False
        forced &= deep.any(axis=1)
        anything = np.zeros_like(logits)
        chosen[forced] = draw(anything[forced], deep[forced], draws[1][forced])
        self._opened[view.rows] = self._begun + np.arange(len(view.rows))
        self._begun += len(view.rows)
        self._templates.append(
            (
                view.rows,
                state,
                features,
                view.mask,
                chosen,
                _log_of(logits, view.mask, chosen),
                (~forced).astype(np.float32),
            )
        )
        return chosen

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """A node class of each row, and then a degree of it."""
        film = self._film.rows(view.rows)
        context = view.context
        devices = view.device
        hidden = self._network.stage(self._trunk[view.rows], context, film)
        draws = self._generator.random((2, len(view.rows)))
        logits = self._network.score("device", hidden, devices, film)
        mask = view.class_mask
        forced = self._forcing.types[view.rows]
        classes = draw(np.where(forced[:, None], np.float32(0), logits), mask, draws[0])
        every = np.arange(len(classes))
        self._place(view.rows, hidden)
        degrees = view.degree[every, classes]
        degree_mask = view.mask[every, classes]
        degree_logits = self._network.score("degree", hidden, degrees, film)
        degree = draw(degree_logits, degree_mask, draws[1])
        self._stages.append(
            (
                view.rows,
                self._opened[view.rows],
                context,
                devices,
                mask,
                classes,
                _log_of(logits, mask, classes),
                (~forced).astype(np.float32),
                degrees,
                degree_mask,
                degree,
                _log_of(degree_logits, degree_mask, degree),
            )
        )
        return classes, degree

    def fill(self, view: FillView) -> Ints:
        """A candidate of each row."""
        film = self._film.rows(view.rows)
        logits = self._network.score(view.head, self._stage[view.rows], view.features, film)
        chosen = draw(logits, view.mask, self._generator.random(len(view.rows)))
        self._record_fill(view, chosen, _log_of(logits, view.mask, chosen))
        return chosen

    def _place(self, rows: Ints, hidden: Array) -> None:
        """Remember the stage that is placed in these rows, for choices of its fill."""
        self._stage[rows] = hidden
        self._last[rows] = self._placed + np.arange(len(rows))
        self._placed += len(rows)

    def _record_fill(self, view: FillView, chosen: Ints, old: Floats) -> None:
        kept = view.mask.sum(axis=1) > 1  # what has one candidate is no decision
        rows = view.rows[kept]
        made = (rows, self._last[rows], view.features[kept], view.mask[kept])
        self._fill.setdefault(view.head, []).append((*made, chosen[kept], old[kept]))

    def records(self) -> Records:
        """All decisions so far."""
        templates: list[Any] = [
            np.concatenate(column) for column in zip(*self._templates, strict=True)
        ]
        stages: list[Any] = [np.concatenate(column) for column in zip(*self._stages, strict=True)]
        fill = tuple(_joined(head, made) for head, made in self._fill.items())
        return replace(Records(*templates, *stages), fill=fill)


def record(
    network: Network,
    constructions: Constructions,
    generator: np.random.Generator,
    forcing: Forcing,
) -> Records:
    """Play rollouts and return their decisions."""
    chooser = RecordingChooser(network, constructions, generator, forcing)
    play(constructions, chooser)
    return chooser.records()


def _joined(head: str, made: list[tuple[Any, ...]]) -> FillRecords:
    """The decisions of a head as one, with as many candidates as the most had."""
    rows, placed, features, masks, chosen, old = zip(*made, strict=True)
    most = max(mask.shape[1] for mask in masks)
    return FillRecords(
        head,
        np.concatenate(rows),
        np.concatenate(placed),
        np.concatenate([_widened(one, most) for one in features]),
        np.concatenate([_widened(mask, most) for mask in masks]),
        np.concatenate(chosen),
        np.concatenate(old),
    )


def _widened(array: Any, most: int) -> Any:
    """With so many candidates, the added ones all zero."""
    more = [(0, 0)] * array.ndim
    more[1] = (0, most - array.shape[1])
    return np.pad(array, more)


def _log_of(logits: Array, mask: Bools, chosen: Ints) -> Floats:
    """[R] log-probability of the choices."""
    likely = probabilities(logits, mask)[np.arange(len(chosen)), chosen]
    found: Floats = np.log(np.maximum(likely, 1e-30))
    return found
