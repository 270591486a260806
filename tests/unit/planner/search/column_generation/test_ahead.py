"""What is left to cover never costs less than the knapsack says, and a dear stage adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.search.column_generation.ahead import least_ahead

LAYERS, DEEPEST = 6, 3


def problem(seed: int):
    """(stage_s, price, message_s, side_s, per_second, tau_s) of three options without memory."""
    random = np.random.default_rng(seed)
    block_s, fixed_s = random.uniform(0.5, 2.0, 3), random.uniform(0.0, 0.5, (2, 3))
    stage_s = np.full((3, DEEPEST, 2, 1, LAYERS + 1), math.inf)
    for option in range(3):
        for blocks in range(1, LAYERS + 1):
            stage_s[option, :, :, 0, blocks] = blocks * block_s[option]
        stage_s[option, :, 1] += fixed_s[0, option]
        stage_s[option, 0] += fixed_s[1, option]
    price, message_s = random.uniform(0.2, 3.0, 3), random.uniform(0.0, 0.3, 3)
    return stage_s, price, message_s, 0.5 * message_s, random.uniform(0.1, 2.0), 5.0


def stages_in_front(stage_s, price, message_s, side_s, per_second, tau_s, left, position):
    """(cost, (option, blocks) of each) of all rows of stages that hold what is left."""
    if left == 0:
        yield 0.0, ()
        return
    for option in range(len(price)):
        for blocks in range(1, left + 1):
            seconds = stage_s[option, min(position, DEEPEST - 1), int(blocks == left), 0, blocks]
            if seconds > tau_s - side_s[option]:
                continue
            own = price[option] + per_second * (seconds + 2 * message_s[option])
            rest = (stage_s, price, message_s, side_s, per_second, tau_s)
            for cost, others in stages_in_front(*rest, left - blocks, position + 1):
                yield own + cost, ((option, blocks), *others)


@pytest.mark.parametrize("seed", range(5))
def test_no_row_of_stages_costs_less(seed):
    asked = problem(seed)
    ahead, saved = np.zeros(LAYERS + 1), np.zeros(LAYERS + 1)
    least = least_ahead(*asked, 0, ahead, saved)
    for covered in range(1, LAYERS + 1):
        costs = [cost for cost, _ in stages_in_front(*asked, LAYERS - covered, 1)]
        assert ahead[covered] <= min(costs) + 1e-9
    stage_s, price, message_s, _, per_second, tau_s = asked
    cheapest, seen = math.inf, 0
    for option in range(len(price)):
        for blocks in range(1, LAYERS + 1):
            seconds = stage_s[option, 0, int(blocks == LAYERS), 0, blocks]
            if seconds > tau_s:
                continue
            for cost, others in stages_in_front(*asked, LAYERS - blocks, 1):
                whole = price[option] + per_second * seconds + cost
                cheapest = min(cheapest, whole)
                for other, held in others:
                    seen += 1
                    middle_s = stage_s[other, 1, 0, 0, held] + 2 * message_s[other]
                    dearer = price[other] + per_second * middle_s - saved[held]
                    assert whole >= least + dearer - 1e-9
    assert seen
    assert least <= cheapest + 1e-9


def test_nothing_can_hold_what_no_stage_holds():
    stage_s, *rest = problem(0)
    stage_s[:] = math.inf
    ahead, saved = np.zeros(LAYERS + 1), np.zeros(LAYERS + 1)
    assert least_ahead(stage_s, *rest, 0, ahead, saved) == math.inf
