"""The price of a grid: that of the plan where there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.baselines.grid_cost import grid_cost, powers
from benchmarks.baselines.interface import Budget
from benchmarks.baselines.layout import Grid, GridStage, Group
from benchmarks.baselines.metis import plan
from planner.cost.evaluate import cost_of
from tests.baselines import question


@pytest.mark.parametrize("text", ["h100=1x4", "h100=2x2,a100-40=1x4", "a6000=3x4"])
def test_a_grid_that_a_plan_can_say_has_its_price(text):
    asked, seen = question(text, layers=6, batch=32), 0
    for ranked in plan(asked, Budget(evaluations=2000)).plans:
        said = ranked.laid_out()
        if said.beyond_plans():
            continue
        (grid,) = said.grids
        if {group.samples for group in grid.stages[0].groups} - {1, 2, 4, 8, 16}:
            continue  # not profiled
        cost = cost_of(said.as_plan(), asked.workload, asked.composition, asked.profile)
        if len({(one.stages, one.micro_batches) for one in cost.replicas}) > 1:
            continue  # the slowest of each stage is not the slowest replica
        found = grid_cost(grid, asked, "none")
        assert found.iteration_s == pytest.approx(cost.iteration_s, rel=1e-12)
        types = {one.name: one for one in asked.profile.types.values()}
        kinds = [group.groups[0].gpu_type for group in grid.stages]
        assert found.fits == all(
            stage.peak_memory_bytes <= types[kind].usable_bytes
            for stage, kind in zip(cost.replicas[0].stages, kinds, strict=True)
        )
        seen += 1
    assert seen > 3


def group(node, gpu, samples):
    return Group("h100", ((f"h100-{node}", gpu),), samples)


def test_unequal_dp_sends_as_many_parts_as_replicas_overlap():
    asked = question("h100=2x4", layers=4, batch=8)
    one = Grid((GridStage(2, (group(0, 0, 2),)), GridStage(2, (group(1, 0, 2),))), (4,))
    spread = replace(one, stages=(one.stages[0], GridStage(2, (group(1, 0, 1), group(1, 1, 1)))))
    first, second = (grid_cost(grid, asked, "none").iteration_s for grid in (one, spread))
    assert second != first
    assert grid_cost(spread, asked, "none").fits


def test_samples_are_cut_into_profiled_sizes():
    assert powers(7, (1, 2, 4)) == [4, 2, 1]
    assert powers(0, (1, 2)) == []
    with pytest.raises(ValueError, match="no sum"):
        powers(3, (2, 4))
