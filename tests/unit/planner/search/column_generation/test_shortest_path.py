"""The shortest path against an enumeration of all pipelines."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from planner.estimator.build_tables import pricing_of
from planner.search.column_generation.gradient_limit import GradientLimit, gradient_seconds
from planner.search.column_generation.pricing_problem import message_seconds, stage_seconds
from planner.search.column_generation.shortest_path import (
    cheapest_pipelines,
    new_labels,
    read_pipeline,
)
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


def cost_of(t, stage_s, options, blocks, edge_s, limit, tau_s, price, rate):
    """Cost of one pipeline as the legend of `cheapest_pipelines` says; infinite if too slow."""
    depth, total = len(options), 0.0
    for s, (option, held) in enumerate(zip(options, blocks, strict=True)):
        position, kind = depth - 1 - s, t.option_type[option]
        seconds = stage_s[option, position, int(s == 0), 0, held]
        beside = (int(s > 0) + int(s < depth - 1)) * edge_s[kind, kind]
        sum_s = gradient_seconds(limit, option, held, s == 0, s == depth - 1)
        if seconds + beside > tau_s or sum_s > limit.most_s:
            return math.inf
        total += price[option] + rate * seconds
        if s < depth - 1:
            total += 2 * rate * edge_s[kind, t.option_type[options[s + 1]]]
    return total


@pytest.mark.parametrize("seed", range(6))
def test_the_shortest_path_is_the_cheapest_of_all_pipelines(tables, seed):
    t, random = tables, np.random.default_rng(seed)
    options, size = len(t.option_tp), seed % len(t.sizes)
    stage_s = np.empty((options, DEEPEST, 2, 1, t.layers + 1))
    stage_seconds(t, size, 1, t.batch, stage_s)
    price = random.uniform(0.1, 3.0, options) * t.option_tp
    edge_s = message_seconds(t)[size]
    slowest = stage_s[..., 0, 2][np.isfinite(stage_s[..., 0, 2])].max(initial=1e-3)
    tau_s = slowest * random.uniform(0.6, 3.0)
    rate = random.uniform(0.1, 3.0) / tau_s
    ends_s = random.uniform(0.0, 1.0, (options, 2))
    limit = GradientLimit(random.uniform(0.5, 1.5, options), ends_s, random.uniform(2.0, 6.0))
    labels = new_labels(DEEPEST, len(t.node_gpus), 0, t.layers)
    rest = (edge_s, limit, tau_s, price, rate)
    found = cheapest_pipelines(t, stage_s, *rest, math.inf, labels)
    every = {
        (chosen, blocks): cost_of(t, stage_s, chosen, blocks, *rest)
        for depth in range(1, DEEPEST + 1)
        for chosen in product(range(options), repeat=depth)
        for blocks in splits(t.layers, depth)
    }
    best = min(every.values())
    assert found == pytest.approx(best)
    if best < math.inf:
        at = int(np.argmin(labels.cost))
        chosen, blocks = np.zeros(DEEPEST, np.int64), np.zeros(DEEPEST, np.int64)
        read_pipeline(t, labels, at, chosen, blocks)
        key = (tuple(chosen[: at + 1].tolist()), tuple(blocks[: at + 1].tolist()))
        assert every[key] == pytest.approx(best)
        below = cheapest_pipelines(t, stage_s, *rest, best * 1.0001, labels)
        assert below == pytest.approx(best), "a limit above the best cut it off"
        assert cheapest_pipelines(t, stage_s, *rest, best * 0.9, labels) == math.inf


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_is_priced_with_the_dense_blocks_that_it_reaches_into(seed):
    """Seconds, messages and prices are drawn; the first `dense` blocks take longer than others."""
    layers, dense, options = 6, 2, 2
    random = np.random.default_rng(seed)
    pricing = pricing_of(workload(), nodes("fast-0:2 slow-0:2"), demo_profile())
    assert pricing is not None
    kinds = np.array([0, 1])
    t = pricing.tables._replace(dense=dense, layers=layers, option_type=kinds)
    block_s = random.uniform(0.5, 1.5, (options, 2))
    stage_s = np.empty((options, DEEPEST, 2, dense + 1, layers + 1))
    for d in range(dense + 1):
        for others in range(layers + 1):
            stage_s[:, :, :, d, others] = (block_s @ [d, others])[:, None, None]
    stage_s[:, :, :, 0, 0] = math.inf
    price, edge_s = random.uniform(0.1, 2.0, options), random.uniform(0.0, 0.3, (2, 2))
    limit = GradientLimit(np.zeros(options), np.zeros((options, 2)), 0.0)
    labels = new_labels(DEEPEST, 2, dense, layers)
    best = math.inf
    for depth in range(1, DEEPEST + 1):
        for chosen in product(range(options), repeat=depth):
            for blocks in splits(layers, depth):
                cost, start = 0.0, 0
                for s, (option, held) in enumerate(zip(chosen, blocks, strict=True)):
                    first = max(0, min(start + held, dense) - start)
                    seconds = block_s[option] @ [first, held - first]
                    beside = (int(s > 0) + int(s < depth - 1)) * edge_s[option, option]
                    cost += math.inf if seconds + beside > 4.0 else price[option] + seconds
                    if s < depth - 1:
                        cost += 2 * edge_s[option, chosen[s + 1]]
                    start += held
                best = min(best, cost)
    found = cheapest_pipelines(t, stage_s, edge_s, limit, 4.0, price, 1.0, math.inf, labels)
    assert found == pytest.approx(best)
