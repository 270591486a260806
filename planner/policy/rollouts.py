"""Play constructions to their end, whoever chooses.

Invariant: a chooser sees masked candidates only; all constructions step together.
Source: Heddle, Algorithm 1.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import Constructions, DepthView, FillView, StageView
from planner.policy.schema import Bools


class Chooser(Protocol):
    """Whatever makes the decisions of constructions."""

    def depths(self, view: DepthView) -> Ints:
        """[R] a depth for each row, or 0 for STOP; only what the mask keeps."""
        ...

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """[R] node class and [R] index of the TP degree of the next stage of each row."""
        ...

    def fill(self, view: FillView) -> Ints:
        """[R] index of a candidate, for one choice of the fill; asked only where it is chosen."""
        ...


def play(constructions: Constructions, chooser: Chooser) -> None:
    """Build every plan to its end."""
    while len(rows := constructions.live):
        depths = chooser.depths(constructions.observe_depths(rows))
        constructions.open(rows, depths)
        stage = 0
        while len(open_rows := rows[depths > stage]):
            view = constructions.observe_stages(open_rows)
            constructions.place(open_rows, *chooser.stages(view))
            _fill(constructions, chooser, constructions.stage_heads, open_rows)
            stage += 1
        opened = rows[depths > 0]
        if len(opened):
            _fill(constructions, chooser, constructions.template_heads, opened)
            constructions.close(opened)


def _fill(
    constructions: Constructions, chooser: Chooser, heads: tuple[str, ...], rows: Ints
) -> None:
    for head in heads:
        view = constructions.observe_fill(head, rows)
        constructions.fill(head, rows, chooser.fill(view))


class UniformChooser:
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

    def fill(self, view: FillView) -> Ints:
        """Any candidate that is possible."""
        return draw_uniform(view.mask, self._generator.random(len(view.rows)))


def draw_uniform(mask: Bools, draws: Floats) -> Ints:
    """[R] one of the kept candidates of each row, by a number from 0 to 1."""
    counts = np.cumsum(mask, axis=1)
    wanted = np.floor(draws * counts[:, -1]).astype(np.int64) + 1
    chosen: Ints = (counts >= wanted[:, None]).argmax(axis=1)
    return chosen
