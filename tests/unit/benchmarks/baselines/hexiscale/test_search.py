"""HexiScale's rounds of pipelines: their GPUs, their number, their seed."""

from __future__ import annotations

from benchmarks.baselines.hexiscale import plan
from benchmarks.baselines.interface import Budget
from tests.baselines import question


def test_pipelines_take_every_gpu_once_and_a_tp_group_one_machine():
    asked = question("h100=2x4,a6000=2x4", layers=16, batch=64)
    answer = plan(asked, Budget())
    assert answer.plans
    for ranked in answer.plans:
        said = ranked.laid_out()
        groups = [g for grid in said.grids for stage in grid.stages for g in stage.groups]
        assert sum(group.tp for group in groups) == len(said.gpus) == 16
        assert all(len(group.nodes) == 1 for group in groups)
        assert sum(grid.micro_batches[0] * 2 for grid in said.grids) == 64


def test_the_number_of_pipelines_changes_by_one_a_round():
    asked = question("h100=4x4", layers=16, batch=64)
    counts = [len(plan.laid_out().grids) for plan in plan(asked, Budget(evaluations=1)).plans]
    assert counts == [2]
    later = {len(plan.laid_out().grids) for plan in plan(asked, Budget()).plans}
    assert later <= {3, 2}, "between GPUs / L + 1 and GPUs / 5"


def test_another_seed_cuts_otherwise():
    text = "h100=2x4,a6000=2x4"
    first, second = (
        plan(question(text, layers=16, batch=64, seed=seed), Budget()) for seed in (0, 1)
    )
    assert [one.own_s for one in first.plans] != [one.own_s for one in second.plans]
