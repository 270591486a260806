"""The dynamic programme against an enumeration of all pipelines."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from planner.estimator.build_tables import pricing_of
from planner.search.column_generation.chains import cheapest_chains, new_chains, read_chain
from planner.search.column_generation.column_pricing import stage_seconds
from planner.search.column_generation.mixtures import edge_seconds
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


def cost_of(t, stage_s, options, blocks, tau_s, price, per_second, edge_s, most_blocks):
    """Cost of one pipeline as the legend of `cheapest_chains` says; infinite if too slow."""
    depth, total = len(options), 0.0
    start = 0
    for s, (option, held) in enumerate(zip(options, blocks, strict=True)):
        position, kind = depth - 1 - s, t.option_type[option]
        seconds = stage_s[option, position, int(s == 0), 0, held]
        beside = (int(s > 0) + int(s < depth - 1)) * edge_s[kind, kind]
        if seconds + beside > tau_s or held > most_blocks[option, t.layers - start - held]:
            return math.inf
        total += price[option] + per_second * seconds
        if s < depth - 1:
            total += 2 * per_second * edge_s[kind, t.option_type[options[s + 1]]]
        start += held
    return total


@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_chain_is_the_cheapest_of_all_pipelines(tables, seed):
    t, random = tables, np.random.default_rng(seed)
    options, size = len(t.option_tp), seed % len(t.sizes)
    stage_s = np.empty((options, DEEPEST, 2, 1, t.layers + 1))
    stage_seconds(t, size, 1, t.batch, stage_s)
    price = random.uniform(0.1, 3.0, options) * t.option_tp
    edge_s = edge_seconds(t)[size]
    slowest = stage_s[..., 0, 2][np.isfinite(stage_s[..., 0, 2])].max(initial=1e-3)
    tau_s = slowest * random.uniform(0.6, 3.0)
    per_second = random.uniform(0.1, 3.0) / tau_s
    most_blocks = random.integers(1, t.layers + 1, (options, t.layers + 1))
    chains = new_chains(DEEPEST, t.layers, len(t.node_gpus), options)
    side_s = np.diag(edge_s).copy()
    rest = (t, stage_s, tau_s, price, per_second, edge_s)
    found = cheapest_chains(*rest, side_s, most_blocks, math.inf, chains)
    every = {
        (chosen, blocks): cost_of(
            t, stage_s, chosen, blocks, tau_s, price, per_second, edge_s, most_blocks
        )
        for depth in range(1, DEEPEST + 1)
        for chosen in product(range(options), repeat=depth)
        for blocks in splits(t.layers, depth)
    }
    best = min(every.values())
    assert found == pytest.approx(best)
    if best < math.inf:
        at = int(np.argmin(chains.cost))
        chosen, blocks = np.zeros(DEEPEST, np.int64), np.zeros(DEEPEST, np.int64)
        read_chain(t, chains, at, chosen, blocks)
        key = (tuple(chosen[: at + 1].tolist()), tuple(blocks[: at + 1].tolist()))
        assert every[key] == pytest.approx(best)
        below = cheapest_chains(*rest, side_s, most_blocks, best * 1.0001, chains)
        assert below == pytest.approx(best), "a limit above the best cut it off"
        assert cheapest_chains(*rest, side_s, most_blocks, best * 0.9, chains) >= best * 0.9
