"""A template before and after its fill.

Source: Heddle, sections 5.1 (template) and 5.3 (fill).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cluster.composition import Composition
from planner.cost.batch_split import Lane
from planner.model.shape import ModelShape
from planner.profiles.profile import Profile

Option = tuple[str, int]  # GPU type, TP degree
Structure = tuple[Option, ...]  # the stages of a template, before any fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """One way to fill a template: layers of each stage and what a replica then does.

    Its seconds assume that stages are on one node wherever they could be: no placement beats them.

    Attributes:
        layers: blocks of each stage.
        lane: what a replica does.
        stage_configs: (recomputation, EP, ETP) of each stage; empty: the workload's, and no tiling.
        classes: number of the class of nodes of each stage; empty: any nodes of its type.
        any_speed: whether nodes that differ in speed alone are of one class.
        by_stage: whether the nodes of its plan were thought to take one stage of many replicas.
    """

    layers: tuple[int, ...]
    lane: Lane
    stage_configs: tuple[tuple[str, int, int], ...] = ()
    classes: tuple[int, ...] = ()
    by_stage: bool = False
    any_speed: bool = False


def options(composition: Composition, model: ModelShape, profile: Profile) -> tuple[Option, ...]:
    """Every (GPU type, TP degree) that is profiled, cuts the model evenly, and fits on a node."""
    largest = composition.largest_gpus
    return tuple(
        (gpu_type, tp)
        for gpu_type in sorted(largest)
        for tp in profile.tp_degrees(gpu_type)
        if tp <= largest[gpu_type] and model.allows_tp(tp)
    )
