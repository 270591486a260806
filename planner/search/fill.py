"""A template before and after its fill.

Source: Heddle, sections 5.1 (template) and 5.3 (fill).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.batch_split import Lane

Option = tuple[str, int]  # GPU type, TP degree
Structure = tuple[Option, ...]  # the stages of a template, before any fill
Counts = tuple[tuple[Structure, int], ...]  # templates with their number of replicas


@dataclass(frozen=True, slots=True)
class Filling:
    """One way to fill a template: layers of each stage and what a replica then does.

    Its seconds assume that stages are on one node wherever they could be: no placement beats them.

    Attributes:
        layers: blocks of each stage.
        lane: what a replica does.
        ways: (recomputation, EP, ETP) of each stage; empty: the workload's, and no tiling.
        classes: number of the class of nodes of each stage; empty: any nodes of its type.
        by_stage: whether the nodes of its plan were thought to take one stage of many replicas.
    """

    layers: tuple[int, ...]
    lane: Lane
    ways: tuple[tuple[str, int, int], ...] = ()
    classes: tuple[int, ...] = ()
    by_stage: bool = False
