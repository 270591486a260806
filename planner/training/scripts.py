"""Repeat a plan decision by decision, so that it can be imitated.

Invariant: a script that can be repeated gives the plan it was taken from; of one that cannot, every
decision is possible all the same, and it is marked.
Source: Heddle, section 5.5 (self-imitation); cloning of teachers is beyond the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.estimator.tables import Ints
from planner.policy.environment import (
    Choice,
    Constructions,
    DepthView,
    Environment,
    FillView,
    StageView,
)
from planner.policy.network import Network
from planner.training.records import Forcing, RecordingChooser
from planner.training.teacher_walk import Templates


def script_of(data: Sequence[Sequence[Any]]) -> tuple[Choice, ...]:
    """Decisions of a plan as JSON gives them back."""
    return tuple(
        Choice(depth, tuple((c, k) for c, k in stages), tuple(fill)) for depth, stages, fill in data
    )


def script_from(one: Environment, templates: Templates) -> tuple[Choice, ...]:
    """The decisions that build the templates of a lesson."""
    classes, degrees = one.pricing.tables.option_type, one.menu.degree
    return tuple(
        Choice(len(row), tuple((int(classes[o]), int(degrees[o])) for o in row))
        for row in templates
    )


def templates_from(one: Environment, script: Sequence[Choice]) -> Templates:
    """The templates that decisions build."""
    classes, degrees = one.pricing.tables.option_type, one.menu.degree
    options = {(int(c), int(k)): o for o, (c, k) in enumerate(zip(classes, degrees, strict=True))}
    return tuple(tuple(options[stage] for stage in choice.stages) for choice in script)


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
        self._next = np.zeros(constructions.rows, np.int64)
        self._next_fill = np.zeros(constructions.rows, np.int64)
        self.went_wrong = np.zeros(constructions.rows, bool)

    def depths(self, view: DepthView) -> Ints:
        """The depths of the scripts."""
        super().depths(view)
        self._template[view.rows] += 1
        self._next[view.rows] = 0
        self._next_fill[view.rows] = 0
        chosen = np.zeros(len(view.rows), np.int64)
        for i, row in enumerate(view.rows):
            script = self._scripts[row]
            if self._template[row] < len(script):
                chosen[i] = script[self._template[row]].depth
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
            stages = self._now(row).stages
            if self._next[row] < len(stages):
                one, degree = stages[self._next[row]]
                chosen[i] = one * degrees + degree
            else:
                chosen[i] = -1
        self._next[view.rows] += 1
        self._place(view.rows, self._stage[view.rows])
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

    def fill(self, view: FillView) -> Ints:
        """The choices of the scripts."""
        wanted = np.full(len(view.rows), -1)
        for i, row in enumerate(view.rows):
            fill = self._now(row).fill
            if self._next_fill[row] < len(fill):
                wanted[i] = fill[self._next_fill[row]]
        self._next_fill[view.rows] += 1
        beyond = (wanted < 0) | (wanted >= view.mask.shape[1])
        chosen = np.where(beyond, 0, wanted)
        impossible = beyond | ~view.mask[np.arange(len(chosen)), chosen]
        chosen[impossible] = view.mask[impossible].argmax(axis=1)
        self.went_wrong[view.rows[impossible]] = True
        self._record_fill(view, chosen, np.zeros(len(chosen)))
        return chosen

    def _now(self, row: int) -> Choice:
        """The script's template that is open; its last one if it has no more."""
        script = self._scripts[row]
        return script[min(int(self._template[row]), len(script) - 1)]
