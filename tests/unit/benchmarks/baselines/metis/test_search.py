"""Metis' search: its space, its prices and its order."""

from __future__ import annotations

from itertools import accumulate, permutations, product

import pytest

from benchmarks.baselines.interface import Budget, Meter
from benchmarks.baselines.layout import listed_gpus
from benchmarks.baselines.metis.search import _Order, plan
from benchmarks.baselines.quantities import Quantities
from tests.baselines import question


@pytest.mark.parametrize("text", ["h100=1x4", "h100=1x2,a100-40=1x2"])
def test_its_best_plan_is_the_best_of_every_order_alone(text):
    """Each order of each list of powers of two is searched by itself, without pruning."""
    asked = question(text)
    numbers, best, priced = Quantities(asked), [], 0
    for types in permutations(asked.composition.gpu_types):
        for count in range(1, 5):
            for groups in product((1, 2, 4), repeat=count):
                if sum(groups) == 4:
                    meter = Meter(Budget())
                    gpus = listed_gpus(asked.composition, types)
                    assert _Order(numbers, gpus, meter, False).try_groups(groups)
                    best += [one.own_s for one in meter.found]
                    priced += meter.priced
    found = plan(asked, Budget(), variance=0.0)
    assert found.plans_priced == priced
    assert found.plans[0].own_s == min(best)


def test_it_uses_every_gpu_and_no_tp_group_crosses_a_node():
    asked = question("h100=1x4+1x2,a100-40=1x2", batch=16)
    answer = plan(asked, Budget(evaluations=300))
    assert answer.plans
    for ranked in answer.plans:
        said = ranked.laid_out()
        assert len(said.gpus) == asked.composition.gpus
        groups = [group for stage in said.grids[0].stages for group in stage.groups]
        assert all(len(group.nodes) == 1 for group in groups)


def test_a_mixed_stage_splits_its_batch_by_speed():
    asked = question("h100=1x2,a6000=1x2", batch=32)
    for ranked in plan(asked, Budget()).plans:
        (grid,) = ranked.laid_out().grids
        for stage in grid.stages:
            fast = [g.samples for g in stage.groups if g.gpu_type == "h100"]
            slow = [g.samples for g in stage.groups if g.gpu_type == "a6000"]
            if fast and slow:
                assert min(fast) >= max(slow)
        totals = {
            sum(g.samples for g in stage.groups) * grid.micro_batches[0] for stage in grid.stages
        }
        assert totals == {32}


def test_dp_is_tried_before_tp():
    asked = question("h100=1x4")
    numbers = Quantities(asked)
    order = _Order(numbers, listed_gpus(asked.composition), Meter(Budget()), False)
    groups = (4,)
    degrees = [
        [work.tp for work in works]
        for works in order._strategies(groups, (0, *accumulate(groups[:-1])), 4)
    ]
    assert degrees == [[1], [2], [4]]


def test_as_released_counts_one_replica_in_its_memory_rule():
    asked = question("a6000=1x4", layers=12, batch=16)
    released = plan(asked, Budget(), as_released=True)
    described = plan(asked, Budget())
    most = [
        max(max(len(s.groups) for s in one.laid_out().grids[0].stages) for one in answer.plans)
        for answer in (released, described)
    ]
    assert most[0] > most[1]
