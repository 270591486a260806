"""AMP: its space, its cut of the layers, and its formula."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest

from benchmarks.baselines.amp import candidates, layer_costs, partition, plan
from benchmarks.baselines.interface import Budget
from benchmarks.baselines.quantities import Quantities, divisors
from tests.baselines import question


def test_its_own_example_of_16_gpus_has_53_candidates():
    """Four nodes of four GPUs and a batch of 32, as its release ships it."""
    assert len(candidates(4, 16, 32)) == 53


def all_cuts(layers, stages):
    """Every cut whose ends hold a block beside the embedding or the head."""
    for inner in combinations(range(2, layers - 1), stages - 1):
        yield (0, *inner, layers)


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
@pytest.mark.parametrize("costs", [(1, 3, 3, 3, 3, 3, 4), (5, 1, 1, 2, 8, 1, 1, 1), (1.0,) * 9])
def test_no_cut_has_a_smaller_bottleneck(costs, stages):
    found = partition(costs, stages)
    slowest = max(sum(costs[a:b]) for a, b in pairwise(found))
    assert slowest == min(
        max(sum(costs[a:b]) for a, b in pairwise(cuts)) for cuts in all_cuts(len(costs), stages)
    )


def test_one_micro_batch_takes_even_stages():
    assert partition((9.0, *(1.0,) * 8, 9.0), 4, uniform=True) == (0, 3, 5, 7, 10)


def test_its_best_plan_is_that_of_brute_force():
    asked = question("h100=1x4")
    numbers, layers, batch = Quantities(asked), 6, 8
    h, v = asked.workload.model.hidden, asked.workload.model.vocab
    rate = numbers.inside("h100")
    best = math.inf
    for tp in (1, 2, 4):
        costs = layer_costs(numbers, tp)
        for dp in divisors(4 // tp):
            pp = 4 // (tp * dp)
            for size in divisors(batch // dp):
                many = batch // (dp * size)
                for cuts in all_cuts(layers, pp):
                    times = [size * sum(costs[a:b]) for a, b in pairwise(cuts)]
                    weights = [
                        (b - a - (s == 0) - (s == pp - 1)) * 12 * h**2
                        + ((s == 0) + (s == pp - 1)) * h * v
                        for s, (a, b) in enumerate(pairwise(cuts))
                    ]
                    sync_s = 2 * (dp - 1) / (dp * rate) * max(weights) / tp * 2
                    sent_s = (pp - 1) * size * 2048 * h * 2 / rate
                    seconds = (many - 1) * max(times) + sum(times) + sent_s + sync_s
                    best = min(best, seconds)
    assert plan(asked, Budget()).plans[0].own_s == pytest.approx(best, rel=1e-12)


def test_stages_take_the_listed_nodes_in_turn_with_one_tp_degree():
    for ranked in plan(question("h100=2x2,a100-40=2x2"), Budget()).plans:
        (grid,) = ranked.laid_out().grids
        types = [group.gpu_type for stage in grid.stages for group in stage.groups]
        assert types == sorted(types)
        assert len({group.tp for stage in grid.stages for group in stage.groups}) == 1


def test_nodes_of_several_sizes_are_read_as_single_gpus():
    for ranked in plan(question("h100=1x4+2x1,a100-40=2x1"), Budget()).plans:
        assert {g.tp for s in ranked.laid_out().grids[0].stages for g in s.groups} == {1}


def test_as_released_prices_dp_by_its_last_link():
    """The slow card is between the others, so that the last two neighbours have a fast link."""
    asked = question("a100-80=1x1,a6000=1x1,h100=1x1", batch=3)
    described, released = (
        {one.laid_out(): one.own_s for one in plan(asked, Budget(), as_released=flag).plans}
        for flag in (False, True)
    )
    assert described.keys() == released.keys()
    faster = [said for said, own_s in described.items() if released[said] < own_s]
    assert {len(said.grids[0].micro_batches) for said in faster} == {3}
