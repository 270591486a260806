"""A limit cuts nothing off that stays below it, whatever it lets the walk leave out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.tables import MAX_DEPTH
from planner.kernel.bound_pricing import relaxed_stages
from planner.kernel.cheapest_walk import cheapest_walk
from planner.kernel.visits import new_walk, read_walk
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.node_classes import class_sizes
from planner.profiles.generator import find_profile
from planner.visits import visits_of

DEEPEST = 6


def walk_on(name: str, text: str):
    """(tables, visits, seconds of stages, walk)."""
    model = find_model(name)
    workload = Workload(model, 64, 2048, "fp16", recompute=model.recompute)
    composition, profile = Composition.from_text(text), find_profile(workload)
    pricing = pricing_of(workload, composition, profile)
    t = pricing.tables
    nodes = tuple(class_sizes(composition).values())
    visits = visits_of(t, pricing, workload, profile, nodes)
    shape = (1, len(t.sizes), len(t.option_tp), DEEPEST, 2, t.dense + 1, t.layers + 1)
    stage_s = np.empty(shape)
    relaxed_stages(t, np.array([1]), 64, stage_s)
    return t, visits, stage_s[0], new_walk(visits, DEEPEST, t.layers, len(t.option_tp))


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3-like"])
@pytest.mark.parametrize("seed", range(4))
def test_a_limit_above_the_cheapest_leaves_it_the_cheapest(name, seed):
    text = "a100-80=8x4,h100=6x8" if name == "llama3-8b" else "h100=64x4,a100-80=64x4"
    t, visits, stage_s, walk = walk_on(name, text)
    random = np.random.default_rng(seed)
    size = seed % 2
    price = random.uniform(0.5, 1.5, len(visits.option)) * t.option_tp[visits.option]
    few = stage_s[size, :, 1, 0, 0]  # seconds by blocks
    tau_s = random.uniform(1.5, 4.0) * np.nanmin(few[:, -(-t.layers // DEEPEST)])
    per_second = random.uniform(0.5, 2.0) / tau_s
    most_blocks = np.full((len(t.option_tp), t.layers + 1), t.layers)
    asked = (t, visits, size, stage_s[size], tau_s, price, per_second, most_blocks)
    whole = cheapest_walk(*asked, math.inf, walk)
    assert whole < math.inf
    for above in (1 + 1e-9, 1.01, 1.2):
        assert cheapest_walk(*asked, whole * above, walk) == pytest.approx(whole, rel=1e-12)
        at = int(np.argmin(walk.cost))
        ways, blocks = np.zeros(MAX_DEPTH, np.int64), np.zeros(MAX_DEPTH, np.int64)
        read_walk(t, visits, walk, at, ways, blocks)
        assert blocks[: at + 1].sum() == t.layers
        assert price[ways[: at + 1]].sum() <= whole
    assert cheapest_walk(*asked, whole * 0.999, walk) >= whole * 0.999
