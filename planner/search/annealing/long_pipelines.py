"""Pipelines over all node classes, for models that no class can hold alone.

A search starts from pipelines that stay on one class; where none fits, only one that spans classes
does, and a walk that starts from nothing hardly ever meets it.
Invariant: no more TP groups than there is room for, no more stages than are allowed, and the stages
of a class stand side by side.
Source: memory of a composition is largest where every GPU holds a stage of one pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.estimator.tables import Tables


def long_pipelines(tables: Tables, deepest: int) -> Iterator[tuple[int, ...]]:
    """The options of each stage of one pipeline after the other.

    Each has the largest TP groups up to a degree, on the classes with the most memory that together
    need no more than `deepest` stages; these stand first, or last.  Where GPUs are limited, those
    with the most memory each are taken.
    """
    room = [max(tables.room[tables.option_type == kind]) for kind in range(len(tables.node_gpus))]
    memory = tables.usable_bytes * (1 if len(tables.limit) else room)
    for degree in sorted({int(tp) for tp in tables.option_tp}):
        chosen: list[tuple[int, ...]] = []
        left = tables.limit.copy()
        for kind in np.argsort(-memory, kind="stable"):
            is_limited = tables.is_limited[:, kind] == 1
            stages = _stages_of(tables, int(kind), degree, min([room[kind], *left[is_limited]]))
            if sum(map(len, chosen)) + len(stages) <= deepest:
                chosen.append(stages)
                left -= is_limited * sum(int(tables.option_tp[option]) for option in stages)
        for order in (chosen, chosen[::-1]):
            if any(order):
                yield tuple(option for stages in order for option in stages)


def _stages_of(tables: Tables, kind: int, degree: int, most: int) -> tuple[int, ...]:
    """Stages on so many GPUs of a class, in groups as large as that degree allows."""
    found: list[int] = []
    taken = 0
    for option in np.flatnonzero(tables.option_type == kind)[::-1]:
        tp = int(tables.option_tp[option])
        if tp <= degree:
            groups = max(0, (min(int(tables.room[option]), most) - taken) // tp)
            found += [int(option)] * groups
            taken += groups * tp
    return tuple(found)
