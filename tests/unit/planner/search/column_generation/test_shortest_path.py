"""The shortest path against an enumeration of all pipelines."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from planner.estimator.build_tables import pricing_of
from planner.search.column_generation.network import new_network, stage_seconds
from planner.search.column_generation.shortest_path import cheapest_pipelines, read_pipeline
from tests.builders import demo_profile, nodes, workload

DEEPEST = 3


@pytest.fixture(scope="module")
def tables():
    pricing = pricing_of(workload(), nodes("fast-0:2 slow-0:2"), demo_profile())
    assert pricing is not None
    return pricing.tables


def splits(layers: int, depth: int):
    for cuts in combinations(range(1, layers), depth - 1):
        ends = (0, *cuts, layers)
        yield tuple(b - a for a, b in pairwise(ends))


def cost_of(t, stage_s, options, blocks, edge_s, tau_s, price, rate):
    """Cost of one pipeline as the legend of `cheapest_pipelines` says; infinite if too slow."""
    depth, total = len(options), 0.0
    for s, (option, held) in enumerate(zip(options, blocks, strict=True)):
        position, kind = depth - 1 - s, t.option_type[option]
        seconds = stage_s[option, position, int(s == 0), 0, held]
        beside = (int(s > 0) + int(s < depth - 1)) * edge_s[kind, kind]
        if seconds + beside > tau_s:
            return math.inf
        total += price[option] + rate * seconds
        if s < depth - 1:
            total += 2 * rate * edge_s[kind, t.option_type[options[s + 1]]]
    return total


@pytest.mark.parametrize("seed", range(6))
def test_the_shortest_path_is_the_cheapest_of_all_pipelines(tables, seed):
    t, random = tables, np.random.default_rng(seed)
    options, size = len(t.option_tp), seed % len(t.sizes)
    network = new_network(t, DEEPEST)
    stage_s, edge_s, price = network.stage_s[0, size], network.edge_s[size], network.duals
    stage_seconds(t, size, 1, stage_s)
    price[:] = random.uniform(0.1, 3.0, options) * t.option_tp
    slowest = stage_s[..., 0, 2][np.isfinite(stage_s[..., 0, 2])].max(initial=1e-3)
    tau_s = slowest * random.uniform(0.6, 3.0)
    rate = t.sizes[size] / tau_s
    asked = (t, network, 0, size, tau_s)
    found = cheapest_pipelines(*asked, math.inf)
    every = {
        (chosen, blocks): cost_of(t, stage_s, chosen, blocks, edge_s, tau_s, price, rate)
        for depth in range(1, DEEPEST + 1)
        for chosen in product(range(options), repeat=depth)
        for blocks in splits(t.layers, depth)
    }
    best = min(every.values())
    assert found == pytest.approx(best)
    if best < math.inf:
        at = int(np.argmin(network.cost))
        read_pipeline(t, network, at)
        chosen, blocks = (tuple(row[: at + 1].tolist()) for row in network.path)
        assert every[chosen, blocks] == pytest.approx(best)
        below = cheapest_pipelines(*asked, best * 1.0001)
        assert below == pytest.approx(best), "a limit above the best cut it off"
        assert cheapest_pipelines(*asked, best * 0.9) == math.inf


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_is_priced_with_the_dense_blocks_that_it_reaches_into(seed):
    """Seconds, messages and prices are drawn; the first `dense` blocks take longer than others."""
    layers, dense = 6, 2
    random = np.random.default_rng(seed)
    pricing = pricing_of(workload(), nodes("fast-0:2 slow-0:2"), demo_profile())
    assert pricing is not None
    t = pricing.tables._replace(dense=dense, layers=layers)
    options, kinds, rate = len(t.option_tp), t.option_type, t.sizes[0] / 4.0
    network = new_network(t, DEEPEST)
    block_s = random.uniform(0.5, 1.5, (options, 2))
    stage_s = network.stage_s[0, 0]
    for d in range(dense + 1):
        for others in range(layers + 1):
            stage_s[:, :, :, d, others] = (block_s @ [d, others])[:, None, None]
    stage_s[:, :, :, 0, 0] = math.inf
    price, edge_s = network.duals, network.edge_s[0]
    price[:], edge_s[:] = random.uniform(0.1, 2.0, options), random.uniform(0.0, 0.3, (2, 2))
    best = math.inf
    for depth in range(1, DEEPEST + 1):
        for chosen in product(range(options), repeat=depth):
            for blocks in splits(layers, depth):
                cost, start = 0.0, 0
                for s, (option, held) in enumerate(zip(chosen, blocks, strict=True)):
                    first = max(0, min(start + held, dense) - start)
                    seconds = block_s[option] @ [first, held - first]
                    beside = (int(s > 0) + int(s < depth - 1)) * edge_s[
                        kinds[option], kinds[option]
                    ]
                    cost += math.inf if seconds + beside > 4.0 else price[option] + rate * seconds
                    if s < depth - 1:
                        cost += 2 * rate * edge_s[kinds[option], kinds[chosen[s + 1]]]
                    start += held
                best = min(best, cost)
    found = cheapest_pipelines(t, network, 0, 0, 4.0, math.inf)
    assert found == pytest.approx(best)
