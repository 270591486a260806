"""The choice among what was found: few bytes among equals, and what is said of the plan."""

from __future__ import annotations

from dataclasses import replace

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.money import with_prices
from planner.request import PlanRequest
from planner.search.candidate import Evaluator
from planner.search.choice import fewest_bytes, notes_of
from planner.search.solution_pool import SolutionPool
from tests.builders import demo_profile, nodes, placed, template, workload


def found(composition: Composition, *plans, **wishes):
    request = PlanRequest(workload=workload(), composition=composition, **wishes)
    evaluator, findings = (
        Evaluator(workload=workload(), composition=composition, profile=demo_profile()),
        SolutionPool(request),
    )
    candidates = [evaluator.as_it_is(plan) for plan in plans]
    for candidate in candidates:
        assert findings.offer(candidate) or findings.best is not None
    return request, evaluator, findings, candidates


def test_of_plans_as_fast_the_one_that_is_there_already_is_chosen():
    composition = nodes("fast-0:2 fast-1:2")
    here = placed(template("1x3 1x3", 2, (16,)), composition=nodes("fast-0:2"))
    there = placed(template("1x3 1x3", 2, (16,)), composition=nodes("fast-1:2"))
    for current in (here, there):
        _, evaluator, findings, candidates = found(composition, here, there, current=current)
        stays = next(one for one in candidates if one.plan == current)
        assert fewest_bytes(findings, evaluator, stays).plan == current


def test_what_was_wished_in_vain_is_said():
    plan = placed(template("1x3 1x3", 2, (16,)), composition=nodes("fast-0:2"))
    composition = Composition((*nodes("fast-0:2").nodes, Node(name="new", gpu_type="h999", gpus=4)))
    request, _, _, (only,) = found(nodes("fast-0:2"), plan)
    assert list(notes_of(request, demo_profile(), only)) == []
    asked = replace(request, composition=composition, min_holders=2)
    holders, unknown = notes_of(asked, demo_profile(), only)
    assert "this plan reaches 1" in holders
    assert "'h999' has no profile" in unknown


def test_zero_is_named_where_it_keeps_pieces_on_one_gpu():
    plan = placed(template("1x3 1x3", 2, (16,)), composition=nodes("fast-0:2 fast-1:2"))
    request, _, _, (only,) = found(nodes("fast-0:2 fast-1:2"), plan)
    sharded = replace(request, workload=replace(request.workload, zero=1), min_holders=2)
    (holders,) = notes_of(sharded, demo_profile(), only)
    assert holders.endswith("has one owner in a template; turn ZeRO off")


def test_zero_with_one_replica_is_a_note():
    plan = placed(template("1x3 1x3", 2, (16,)), composition=nodes("fast-0:2"))
    request, _, _, (only,) = found(nodes("fast-0:2"), plan)
    (note,) = notes_of(request, demo_profile(), replace(only, plan=plan.with_zero(1)))
    assert "one replica" in note


def test_of_plans_that_are_too_dear_the_cheapest_is_named():
    composition = with_prices(nodes("fast-0:2 fast-1:2"), {"demo-fast": 1.0})
    both = placed(template("1x3 1x3", 2, (8, 8)), composition=composition)
    one = placed(template("1x3 1x3", 2, (16,)), composition=composition)
    request = PlanRequest(workload=workload(), composition=composition, max_price=1.0)
    evaluator, findings = (
        Evaluator(workload=workload(), composition=composition, profile=demo_profile()),
        SolutionPool(request),
    )
    for plan in (both, one):
        findings.offer(evaluator.as_it_is(plan))
    assert findings.best is None
    assert findings.nearest.plan == one


def test_a_limit_on_gpus_is_named_where_it_leaves_too_few_for_all_holders():
    plan = placed(template("1x3 1x3", 2, (16,)), composition=nodes("fast-0:2"))
    request, _, _, (only,) = found(nodes("fast-0:2 fast-1:2 fast-2:2"), plan)
    asked = replace(request, min_holders=3, max_gpus=GpuLimits(2))
    (holders,) = notes_of(asked, demo_profile(), only)
    assert holders.endswith("this plan reaches 1: it may use 2 GPUs; raise max_gpus")


def test_a_batch_of_too_few_samples_is_named_where_it_allows_too_few_replicas():
    plan = placed(template("1x3 1x3", 1, (1,)), composition=nodes("fast-0:2"))
    one = PlanRequest(workload=workload(1), composition=nodes("fast-0:2 fast-1:2"), min_holders=2)
    evaluator = Evaluator(workload=workload(1), composition=one.composition, profile=demo_profile())
    (holders,) = notes_of(one, demo_profile(), evaluator.as_it_is(plan))
    assert holders.endswith("batch 1 allows 1 replica; raise the batch")


def test_a_running_plan_with_another_stage_of_zero_is_named():
    plan = placed(template("1x3 1x3", 2, (16,)), composition=nodes("fast-0:2"))
    request, _, _, (only,) = found(nodes("fast-0:2"), plan)
    sharded = replace(request, current=plan.with_zero(1))
    (said,) = notes_of(sharded, demo_profile(), only)
    assert "the running plan has ZeRO 1, asked is ZeRO 0" in said
    assert list(notes_of(replace(sharded, zero_where_needed=True), demo_profile(), only)) == []
    assert list(notes_of(replace(request, current=plan), demo_profile(), only)) == []
