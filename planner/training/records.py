"""Decisions of constructions with all that they were made from, for the objective.

Invariant: the log-probability of every recorded choice can be computed again from its record.
Source: Heddle, section 5.5 (forced depths, one rollout of uniform types, what is imitated).
Legend: N templates begun, S stages, A candidates, F features, R constructions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from planner.kernel.tables import Floats, Ints
from planner.policy.environment import Constructions, DepthView, StageView
from planner.policy.network import Film, Network
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
        renumbered = np.cumsum(templates) - 1
        parts = {
            field.name: getattr(self, field.name)[stages if _is_of_stage(field.name) else templates]
            for field in fields(self)
        }
        parts["opened"] = renumbered[parts["opened"]]
        return Records(**parts)


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

    def records(self) -> Records:
        """All decisions so far."""
        templates = [np.concatenate(column) for column in zip(*self._templates, strict=True)]
        stages = [np.concatenate(column) for column in zip(*self._stages, strict=True)]
        return Records(*templates, *stages)


Choice = tuple[int, tuple[tuple[int, int], ...]]  # a depth, and node class and degree of each stage


class ScriptedChooser(RecordingChooser):
    """Repeats given decisions, and records them as if the policy had made them."""

    def __init__(
        self,
        network: Network,
        constructions: Constructions,
        scripts: tuple[tuple[Choice, ...], ...],
    ) -> None:
        """One script per construction: its templates, in order; then it stops."""
        none = np.zeros(constructions.rows, bool)
        super().__init__(network, constructions, np.random.default_rng(0), Forcing(none, none))
        self._scripts = scripts
        self._template = np.full(constructions.rows, -1)
        self._stage = np.zeros(constructions.rows, np.int64)
        self.went_wrong = np.zeros(constructions.rows, bool)

    def depths(self, view: DepthView) -> Ints:
        """The depths of the scripts."""
        super().depths(view)
        self._template[view.rows] += 1
        self._stage[view.rows] = 0
        chosen = np.zeros(len(view.rows), np.int64)
        for i, row in enumerate(view.rows):
            script = self._scripts[row]
            if self._template[row] < len(script):
                chosen[i] = script[self._template[row]][0]
        impossible = ~view.mask[np.arange(len(chosen)), chosen]
        chosen[impossible] = view.mask[impossible].argmax(axis=1)
        self.went_wrong[view.rows[impossible]] = True
        self._templates[-1] = (*self._templates[-1][:4], chosen, *self._templates[-1][5:])
        return chosen

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """The node classes and degrees of the scripts."""
        hidden = view.mask.reshape(len(view.rows), -1)
        degrees = view.mask.shape[2]
        chosen = np.zeros(len(view.rows), np.int64)
        for i, row in enumerate(view.rows):
            stages = self._scripts[row][min(self._template[row], len(self._scripts[row]) - 1)][1]
            if self._stage[row] < len(stages):
                one, degree = stages[self._stage[row]]
                chosen[i] = one * degrees + degree
            else:
                chosen[i] = -1
        self._stage[view.rows] += 1
        beyond = (chosen < 0) | (chosen >= hidden.shape[1])
        chosen[beyond] = 0
        impossible = beyond | ~hidden[np.arange(len(chosen)), chosen]
        chosen[impossible] = hidden[impossible].argmax(axis=1)
        self.went_wrong[view.rows[impossible]] = True
        classes, degree = chosen // degrees, chosen % degrees
        every = np.arange(len(classes))
        free = np.ones(len(classes), np.float32)
        nothing = np.zeros(len(classes))
        self._stages.append(
            (
                view.rows,
                self._opened[view.rows],
                view.context,
                view.device,
                view.class_mask,
                classes,
                nothing,
                free,
                view.degree[every, classes],
                view.mask[every, classes],
                degree,
                nothing,
            )
        )
        return classes, degree


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


def _log_of(logits: Array, mask: Bools, chosen: Ints) -> Floats:
    """[R] log-probability of the choices."""
    likely = probabilities(logits, mask)[np.arange(len(chosen)), chosen]
    found: Floats = np.log(np.maximum(likely, 1e-30))
    return found
