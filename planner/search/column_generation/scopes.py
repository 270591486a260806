"""The scopes of column generation: types that may be used, where, and the time to sum gradients.

Source: research on plan search (column generation).   Legend: O options, T node classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.estimator.elites import Elites
from planner.estimator.fill.zone_limits import Zones
from planner.estimator.tables import Floats, Tables
from planner.search.column_generation.mixtures import Bools
from planner.search.column_generation.zones import (
    end_zones,
    plan_zone_seconds,
    slow_ends,
    whole_zones,
    zones_of,
)

APART = 2.5  # NICs that differ by less count as equally slow when scopes are thought of
NEW_SYNC = 0.02  # scopes whose gradient sums differ by less are one


@dataclass(slots=True, eq=False)
class Scope:
    """Types that may be used, where, and how long gradients may be summed.

    Attributes:
        allowed: [T].
        zones: where those with slow NICs may stand.
        promise: [Q, Z, G] as `column_pricing` takes it.
        prices: [O] of TP groups, the last.
        mixed: samples of the last mix, a share of the batch.
        hoped: what no mix of any columns exceeds, likewise.
        rounds: so far.
        summed: how long the plan that the scope follows sums gradients, a share of what its zones
            count; 0 in a scope that follows no plan.
        nic_s: seconds per byte of its smallest share of a NIC; 0 in a scope that follows no plan.
    """

    allowed: Bools
    zones: Zones
    promise: Floats
    prices: Floats
    mixed: float = 0.0
    hoped: float = math.inf
    rounds: int = 0
    summed: float = 0.0
    nic_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BestPlan:
    """What scopes need to know of the best plan so far.

    Attributes:
        value: its objective.
        seconds: of an iteration.
        money: per hour that others may cost.
        pipelines: replicas of all templates.
        types: node classes.
        sync_s: its gradient sum.
        nic_s: [T] seconds per byte that a GPU sends between nodes.
    """

    value: float
    seconds: float
    money: float
    pipelines: int
    types: list[int]
    sync_s: float
    nic_s: Floats


def scope_sync_seconds(t: Tables, scope: Scope, best: BestPlan) -> float:
    """How long gradients are summed in a scope.

    Its zones count with all GPUs of a node sending at once, and with the slowest NIC for every
    layer.  So it is as long as the plan that the scope follows takes, else as if GPUs shared NICs
    as those of the best plan do.
    """
    if scope.summed:
        return scope.zones.most_s * scope.summed
    together_s = best.nic_s[scope.allowed].max()
    return float(scope.zones.most_s * together_s / t.nic[scope.allowed, 1].max())


def pipeline_room(t: Tables, scope: Scope) -> Floats:
    """[O] GPUs that one pipeline may take, by row of room.

    As many rings at least leave a node that all of them stand on, and each has its share of the
    NIC: with more of them, gradients would take longer than a scope counts that follows a plan.
    """
    if not scope.nic_s or not t.rings:
        return t.room.astype(np.float64)
    rings = np.floor(t.node_gpus * scope.nic_s / t.nic[:, 1] + 1e-9)
    rings[rings >= t.node_gpus] = np.inf
    return np.minimum(t.room, rings[t.option_type])


def types_of(t: Tables, elites: Elites, row: int) -> list[int]:
    """Node classes of one of the elites."""
    depths = elites.depth[row, : elites.templates[row]]
    used = (elites.options[row, k, :depth] for k, depth in enumerate(depths))
    return sorted({int(t.option_type[option]) for options in used for option in options})


def most_mixed(scope: Scope) -> float:
    """Orders the best mixes first."""
    return -scope.mixed


def nic_speeds(t: Tables) -> list[float]:
    """Seconds per byte of the NICs that are far enough apart to matter, slowest first."""
    speeds: list[float] = []
    for slowness in sorted(set(t.nic[:, 1].tolist()), reverse=True):
        if not speeds or slowness * APART < speeds[-1]:
            speeds.append(slowness)
    return speeds


def all_zones(t: Tables, speeds: list[float], seconds: float) -> Iterator[tuple[Bools, Zones]]:
    """Every NIC as the slowest: everywhere, and in a part of the blocks where it is."""
    for slowest in speeds:
        allowed = t.nic[:, 1] <= slowest
        for zones in whole_zones(t, slowest, seconds):
            yield allowed, zones
        for fast in speeds:
            if fast < slowest:
                for zones in end_zones(t, slowest, fast, seconds):
                    yield allowed, zones


def zones_of_plan(
    t: Tables, speeds: list[float], elites: Elites, row: int, used: list[int]
) -> Iterator[Zones]:
    """The zones in which one of the elites stands itself."""
    slowest = float(t.nic[used, 1].max())
    for fast in speeds:
        if fast <= slowest:
            front, back = slow_ends(t, elites, row, fast) if fast < slowest else (t.layers, 0)
            zones = zones_of(t, front, back, slowest, fast, math.inf)
            most_s = plan_zone_seconds(t, elites, row, zones)
            yield zones._replace(most_s=most_s * (1 + 1e-9))


def is_alike(one: Zones, other: Zones, layers: int) -> bool:
    """Whether two scopes would look for the same."""
    return (
        (one.front, one.back) == (other.front, other.back)
        and abs(one.most_s - other.most_s) < NEW_SYNC * other.most_s
        and np.array_equal(one.slow_s, other.slow_s)
        and (one.front == layers or np.array_equal(one.fast_s, other.fast_s))
    )
