"""What the blocks that a chain of stages does not cover cost at least.

A chain that is dear already cannot become a cheap pipeline, and need not be followed.  Whatever
stands in front of it are stages: without their order, their memory further from the end and the
types of their neighbours, the cheapest that hold the rest are a knapsack.
Invariant: no pipeline that goes on from a chain costs less than the chain and this.
Source: research on plan search (column generation).   Legend: O options, P positions, L blocks.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.jit import allocating
from planner.estimator.tables import Floats


@allocating
def least_ahead(
    stage_s: Floats,
    price: Floats,
    message_s: Floats,
    side_s: Floats,
    per_second: float,
    tau_s: float,
    dense: int,
    ahead: Floats,
    saved: Floats,
) -> float:
    """Fill `ahead` and `saved`; returns what any pipeline costs at least.

    A pipeline with a stage of b blocks, not the last, that costs `saved[b]` and x with its message
    costs x more than that at least: knapsacks of both sides of the stage join to one of all.

    Args:
        stage_s: [O, P, 2, dense + 1, L + 1] of `column_pricing.stage_seconds`.
        price: [O] of a TP group; infinite: not to be used.
        message_s: [O] the least seconds of the message behind a stage, which two stages wait for.
        side_s: [O] the least part of tau that messages take from a stage that is not the last.
        per_second: price of a second of any stage.
        tau_s: no stage is slower.
        dense: blocks of the first kind, which stand in front and count as free of charge.
        ahead: [L + 1] takes the least cost of stages in front of so many blocks.
        saved: [L + 1] takes the most that so many blocks more behind save of it.
    """
    layers = stage_s.shape[4] - 1
    position = min(1, stage_s.shape[1] - 1)  # the least memory that one not at the end takes
    costs = np.full((2, layers + 1), math.inf)
    stage, last = costs[0], costs[1]  # by blocks of the second kind
    most = 0
    for option in range(len(price)):
        if price[option] == math.inf:
            continue
        with_message = price[option] + 2.0 * per_second * message_s[option]
        for blocks in range(1, layers + 1):
            seconds = stage_s[option, position, 0, 0, blocks]
            if seconds > tau_s - side_s[option]:
                break
            stage[blocks] = min(stage[blocks], with_message + per_second * seconds)
            most = max(most, blocks)
        for blocks in range(1, layers + 1):
            seconds = min(stage_s[option, 0, 0, 0, blocks], stage_s[option, 0, 1, 0, blocks])
            if seconds > tau_s:
                break
            last[blocks] = min(last[blocks], price[option] + per_second * seconds)
    for i in range(len(ahead)):
        ahead[i] = 0.0
    least = last[layers - dense]
    for rest in range(1, layers - dense + 1):
        cost = math.inf
        for blocks in range(1, min(rest, most) + 1):
            cost = min(cost, stage[blocks] + ahead[layers - dense - rest + blocks])
        ahead[layers - dense - rest] = cost
        least = min(least, cost + last[layers - dense - rest])
    for i in range(len(saved)):
        saved[i] = 0.0
    for blocks in range(1, most + 1):
        for covered in range(layers - dense - blocks + 1):
            if ahead[covered] < math.inf:
                saved[blocks] = max(saved[blocks], ahead[covered] - ahead[covered + blocks])
    return least
