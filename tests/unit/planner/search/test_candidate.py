"""Unplaced candidates become plans: of the ways to place one, the best by what is asked."""

from __future__ import annotations

import pytest

from planner.cluster.composition import Composition
from planner.cost.batch_split import Lane
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, Stage
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.candidate import Evaluator
from planner.search.fill import Filling
from planner.search.solution_pool import SolutionPool
from tests.builders import demo_profile, nodes, workload

PAIR = (("demo-fast", 1),) * 2


@pytest.mark.parametrize(("min_holders", "holders"), [(1, {1, 2}), (2, {2})])
def test_copies_on_enough_nodes_come_before_seconds(min_holders, holders):
    """A node that takes one stage of all four replicas would be its only holder."""
    asked, there = workload(8), nodes("fast-0:4 fast-1:4")
    evaluator = Evaluator(
        workload=asked, composition=there, profile=demo_profile(), min_holders=min_holders
    )
    pool = SolutionPool(PlanRequest(workload=asked, composition=there, min_holders=min_holders))
    placed = evaluator.placed(((PAIR, 4, Filling(layers=(3, 3), lane=Lane(1, 1.0, 2.0, 8))),))
    found = pool.choose(placed)
    assert found is not None
    assert found.holders in holders


@pytest.mark.parametrize(
    ("model", "gpus", "min_holders", "by_stage", "rules"),
    [
        ("llama3-8b", 512, 1, True, ("by replica", "by stage")),
        ("llama3-8b", 2048, 1, False, ("by replica",)),
        ("llama3-8b", 2048, 1, True, ("by stage",)),
        ("llama3-8b", 2048, 2, False, ("by replica", "by stage")),
        ("mixtral-8x7b", 512, 1, True, ("by replica", "by stage", "by tiling")),
        ("mixtral-8x7b", 2048, 1, True, ("by stage",)),
    ],
)
def test_many_gpus_are_placed_as_the_estimator_thinks(model, gpus, min_holders, by_stage, rules):
    asked = Workload(
        model=find_model(model), global_batch=2048, sequence_length=2048, precision="fp16"
    )
    evaluator = Evaluator(
        workload=asked,
        composition=Composition.from_text(f"h100={gpus // 8}x8"),
        profile=find_profile(asked),
        min_holders=min_holders,
    )
    whole = FilledTemplate(
        (Stage(gpu_type="h100", tp=4, layers=asked.model.layers),), 1, (1024, 1024)
    )
    spread = FilledTemplate(
        (Stage(gpu_type="h100", tp=4, layers=asked.model.layers, recompute="none", ep=8, etp=1),),
        1,
        (512, 512),
    )
    templates = (whole,) if asked.model.experts is None else (whole, spread)
    filling = Filling(layers=(asked.model.layers,), lane=Lane(1, 1.0, 2.0, 8), by_stage=by_stage)
    assert evaluator._rules(templates, (((("h100", 4),), 1, filling),)) == rules


def test_all_placements_are_there_to_choose_from():
    many = nodes(" ".join(f"fast-{index}:4" for index in range(17)))
    evaluator = Evaluator(workload=workload(8), composition=many, profile=demo_profile())
    unplaced = ((PAIR, 4, Filling(layers=(3, 3), lane=Lane(1, 1.0, 2.0, 8), classes=(0, 0))),)
    placed = list(evaluator.placed(unplaced))
    assert [len(one.plan.nodes) for one in placed] == [2, 2]
    assert len({one.plan.placement for one in placed}) == 2
