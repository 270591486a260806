"""Columns that the room has place for, against an enumeration of all pipelines; multipliers."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from planner.estimator.build_tables import pricing_of
from planner.search.column_generation.network import new_network, stage_seconds
from planner.search.column_generation.pricing_problem import (
    new_columns,
    price_bottleneck,
    raise_multipliers,
)
from tests.builders import demo_profile, nodes, workload

DEEPEST = 3
CASES = [("fast-0:2 slow-0:1", 1.0), ("fast-0:4 slow-0:2", 0.5)]  # a share of the room is open
SEEDS = range(8)


def tables_of(text):
    pricing = pricing_of(workload(), nodes(text), demo_profile())
    assert pricing is not None
    return pricing.tables


def asked_of(t, options):
    """[O] GPUs of a pipeline by row of room."""
    asked = np.zeros(len(t.option_tp))
    for option in options:
        for row in range(option + 1):
            if t.option_type[row] == t.option_type[option]:
                asked[row] += t.option_tp[option]
    return asked


def pipelines(t, room, stage_s, edge_s, tau_s, price, rate):
    """(what each pipeline within tau costs, whether it fits alone, its options)."""
    for depth in range(1, DEEPEST + 1):
        for options in product(range(len(t.option_tp)), repeat=depth):
            for cuts in combinations(range(1, t.layers), depth - 1):
                blocks = [b - a for a, b in pairwise((0, *cuts, t.layers))]
                cost = 0.0
                for s, (option, held) in enumerate(zip(options, blocks, strict=True)):
                    kind = t.option_type[option]
                    seconds = stage_s[option, depth - 1 - s, int(s == 0), 0, held]
                    beside = (int(s > 0) + int(s < depth - 1)) * edge_s[kind, kind]
                    if seconds + beside > tau_s:
                        cost = math.inf
                    cost += price[option] + rate * seconds
                    if s < depth - 1:
                        cost += 2 * rate * edge_s[kind, t.option_type[options[s + 1]]]
                if cost < math.inf:
                    yield cost, bool((asked_of(t, options) <= room).all()), options


def kept_of(seed, text, share):
    """How many columns are kept of a bottleneck, each of which is as it should be."""
    t, random = tables_of(text), np.random.default_rng(seed)
    options, size = len(t.option_tp), seed % 3
    network = new_network(t, DEEPEST)
    stage_s, edge_s = network.stage_s[0, size], network.edge_s[size]
    stage_seconds(t, size, 1, stage_s)
    thirds = stage_s[..., 0, t.layers // DEEPEST + 1]
    tau_s = 1.5 * thirds[np.isfinite(thirds)].max()
    rate = t.sizes[size] / tau_s
    price = random.uniform(0.0, 0.2, options) * t.option_tp
    network.taus_s[0] = tau_s
    room = network.room
    room[:] = t.room * share
    every = list(pipelines(t, room, stage_s, edge_s, tau_s, price, rate))
    worth = min(cost for cost, _, _ in every) * random.uniform(1.5, 3.0)
    columns = new_columns(20)
    most = price_bottleneck(t, network, 0, size, 0, worth, price, columns)
    assert any(not fits and worth > cost for cost, fits, _ in every), "nothing asks too much"
    fitting = [(worth - cost) / worth for cost, fits, _ in every if fits]
    assert most >= max(fitting) - 1e-9
    kept = int(columns.plan.number[0])
    for row in range(kept):
        chosen = tuple(columns.plan.options[row, : columns.plan.depth[row]].tolist())
        assert (asked_of(t, chosen) <= room).all()
        gains = [(worth - cost) / worth for cost, _, one in every if one == chosen]
        assert columns.gain[row] <= max(gains) + 1e-9
        assert any(columns.gain[row] == pytest.approx(gain) for gain in gains)
    return kept


@pytest.mark.slow
@pytest.mark.parametrize(("text", "share"), CASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_kept_fits_alone_and_nothing_that_fits_gains_more_than_what_is_returned(
    seed, text, share
):
    kept_of(seed, text, share)


def test_nearly_every_bottleneck_with_a_gain_that_fits_has_a_column():
    assert sum(kept_of(seed, *case) > 0 for case in CASES for seed in SEEDS) >= 15


ROOM = np.array([4.0, 4.0])


def test_the_multiplier_of_what_is_asked_too_much_takes_all_that_is_gained():
    multiplier = np.zeros(2)
    raise_multipliers(multiplier, np.array([6.0, 1.0]), ROOM, 10.0)
    assert multiplier.tolist() == [5.0, 0.0]
    assert 10.0 - multiplier[0] * (6.0 - 4.0) == 0.0  # Polyak: the same column gains nothing now


def test_the_multiplier_of_what_is_left_falls_but_not_below_nothing():
    multiplier = np.array([1.0, 9.0])
    raise_multipliers(multiplier, np.array([0.0, 0.0]), ROOM, 16.0)
    assert multiplier.tolist() == pytest.approx([0.0, 7.0])


def test_where_nothing_is_asked_too_much_multipliers_stay():
    multiplier = np.zeros(2)
    raise_multipliers(multiplier, np.array([4.0, 0.0]), ROOM, 3.0)
    assert multiplier.tolist() == [0.0, 0.0]
