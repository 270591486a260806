"""The best plan so far, as column generation needs it: the time, money and NICs to beat.

The time of an iteration always comes from a real plan, because no template is worth anything in a
time that is too short.
Source: Heddle, section 5.2 (iteration time).   Legend: O options, T node classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.estimator.elite_set import EliteSet, load_elite
from planner.estimator.gradient_sync import plan_sync_seconds
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Tables
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.whole_plan import price_per_hour
from planner.estimator.workspace import Workspace
from planner.search.column_generation.gradient_limit import (
    GradientLimit,
    gradient_limit,
    gradient_seconds,
)

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Incumbent:
    """What the best plan takes.

    Attributes:
        seconds: of an iteration; mixes of columns must train the batch in it.
        money: per hour, that others may cost.
        pipelines: replicas of all templates.
        nic_s: seconds per byte of the slowest NIC in use.
        longest_s: the longest gradient sum of a stage, as `GradientLimit` counts it.
        summed: how long gradients are summed in truth, a share of that.
    """

    seconds: float
    money: float
    pipelines: int
    nic_s: float
    longest_s: float
    summed: float


@dataclass(frozen=True, slots=True)
class Restriction:
    """Which templates are columns: for which T, on which classes, and for which gradient sums.

    Attributes:
        horizon_s: T, what pipelines may take.
        allowed: [T] classes whose NICs are fast enough.
        limit: of gradient sums.
    """

    horizon_s: float
    allowed: Bools
    limit: GradientLimit


def restricted(t: Tables, incumbent: Incumbent, nic_s: float, most_s: float) -> Restriction:
    """Columns for plans that are faster: no NIC slower than `nic_s`, no sum longer than `most_s`.

    Gradient sums count as if all GPUs of a node sent at once, so that they take the less of T the
    better the incumbent shares its NICs.
    """
    limit = gradient_limit(t, nic_s, math.inf)
    half_s = 0.5 * (t.layers * limit.block_s.max() + limit.ends_s.max(axis=0).sum())
    most_s = min(most_s, half_s)  # of the model on one GPU: no sum of many replicas is longer
    horizon_s = incumbent.seconds - incumbent.summed * most_s
    limit = limit._replace(most_s=most_s * (1 + 1e-9))
    return Restriction(max(horizon_s, 1e-9), t.nic[:, 1] <= nic_s, limit)


def incumbent_of(t: Tables, limits: SearchLimits, elites: EliteSet, work: Workspace) -> Incumbent:
    """The best of the elites."""
    best, plan = int(np.argmin(elites.value[: elites.number[0]])), new_plan()
    load_elite(elites, best, plan)
    sync_s = plan_sync_seconds(t, plan, work.price)
    seconds, money = float(elites.value[best]), math.inf
    if limits.counts_money:
        money = float(price_per_hour(t, plan))
        seconds /= max(money, limits.least_price)
    stages = [
        (option, blocks, s == 0, s == plan.depth[k] - 1)
        for k in range(plan.number[0])
        for s, (option, blocks) in enumerate(
            zip(plan.options[k, : plan.depth[k]], plan.blocks[k, 0], strict=False)
        )
    ]
    nic_s = max(float(t.nic[t.option_type[option], 1]) for option, *_ in stages)
    limit = gradient_limit(t, nic_s, math.inf)
    longest_s = max(gradient_seconds(limit, *stage) for stage in stages)
    return Incumbent(
        seconds,
        min(money, limits.most_price),
        int(plan.replicas[: plan.number[0]].sum()),
        nic_s,
        longest_s,
        sync_s / longest_s if sync_s else 1.0,
    )
