"""Limits on GPUs: no plan exceeds them, whatever searches; what binds nothing changes nothing."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner.gpu_limits import kept_answers, limited_cases, throughput
from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.errors import Infeasible
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.profiles.generator import find_profile
from planner.request import DEFAULT_EVALUATIONS, Method, PlanRequest
from planner.search.driver import search
from tests.builders import compositions, demo_profile, nodes, work_on, workload

METHODS: tuple[Method, ...] = ("auto", "columns", "search", "policy", "random")


def ask(request: PlanRequest, **wishes):
    """The answer, or None where no plan fits."""
    try:
        return search(replace(request, **wishes), find_profile(request.workload))
    except Infeasible:
        return None


@pytest.mark.slow
@settings(max_examples=40)
@given(
    compositions(most_nodes=4, most_gpus=4),
    st.integers(1, 8),
    st.none() | st.integers(0, 6),
    st.sampled_from(METHODS),
    st.integers(1, 2),
)
def test_no_plan_exceeds_a_limit(composition, total, slow, method, min_holders):
    by_type = () if slow is None else (("demo-slow", slow),)
    request = PlanRequest(
        workload=workload(),
        composition=composition,
        min_holders=min_holders,
        budget_evaluations=400,
        max_gpus=GpuLimits(total, by_type),
        method=method,
        rollouts=8,
    )
    answer = ask(request)
    assert answer is None or request.max_gpus.allows(answer.plan.gpus_by_type)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "limits",
    [GpuLimits(24), GpuLimits(None, (("h100", 8),)), GpuLimits(20, (("a100-40", 12), ("h100", 9)))],
)
def test_no_plan_on_many_gpus_exceeds_a_limit(method, limits):
    asked = work_on("llama3-8b", 256, precision="fp16", memory="paper")
    there = Composition.from_text("h100=3x8+2x4,a100-40=6x4+2x2")
    request = PlanRequest(
        workload=asked, composition=there, budget_evaluations=1500, method=method, max_gpus=limits
    )
    answer = ask(request)
    assert answer is not None
    assert limits.allows(answer.plan.gpus_by_type)
    assert answer.plan.gpus > 8, "more than of one type on one node"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "batch", "text", "wishes"),
    [
        ("tiny-llama", 20, "demo-fast=1x2+1x3", {}),
        ("tiny-llama", 20, "demo-fast=1x4,demo-slow=2x4", {"min_holders": 2}),
        ("llama3-8b", 512, "h100=4x8,a100-40=10x4+12x1", {}),
        ("qwen3-32b", 512, "a100-80=8x8,h100=4x4", {"method": "columns"}),
        ("qwen3-30b-a3b", 256, "h100=4x4,a100-80=2x8", {}),
        ("llama3-8b", 512, "h100=8x8,a6000=8x4", {"method": "policy"}),
        ("llama3-8b", 512, "h100=8x8,a6000=8x4", {"method": "random"}),
    ],
)
def test_where_no_limit_binds_plans_are_as_without(model, batch, text, wishes):
    asked = usual_workload(find_model(model))
    if model != "tiny-llama":
        asked = work_on(model, batch, precision="fp16", memory="paper")
    request = PlanRequest(
        workload=asked,
        composition=Composition.from_text(text),
        budget_evaluations=2000,
        **wishes,
    )
    limits = GpuLimits(1000, (("h100", 1000), ("b200", 0)))
    limited, free = ask(replace(request, max_gpus=limits)), ask(request)
    assert limited.plan.digest == free.plan.digest


def test_the_fast_gpus_are_taken_whatever_their_nodes_are_called():
    there = Composition(
        (
            Node(name="a0", gpu_type="demo-slow", gpus=4),
            Node(name="n1", gpu_type="demo-fast", gpus=4),
            Node(name="n2", gpu_type="demo-fast", gpus=4),
            Node(name="n3", gpu_type="demo-slow", gpus=4),
        )
    )
    request = PlanRequest(
        workload=workload(), composition=there, max_gpus=GpuLimits(4), budget_evaluations=500
    )
    answer = search(request, demo_profile())
    assert set(answer.plan.gpus_by_type) == {"demo-fast"}
    alone = search(replace(request, composition=nodes("fast-0:4")), demo_profile())
    assert answer.throughput_samples_s >= alone.throughput_samples_s * (1 - 1e-9)


def test_a_current_plan_over_the_limit_is_no_candidate():
    there = nodes("fast-0:4 fast-1:4")
    before = search(
        PlanRequest(workload=workload(), composition=there, budget_evaluations=100), demo_profile()
    )
    assert before.plan.gpus > 4
    asked = PlanRequest(
        workload=workload(),
        composition=there,
        current=before.plan,
        max_gpus=GpuLimits(4),
        budget_evaluations=100,
    )
    answer = search(asked, demo_profile())
    assert answer.plan.gpus <= 4
    assert answer.bytes_to_move is not None
    within = replace(asked, current=answer.plan, budget_evaluations=1)
    kept = search(within, demo_profile())
    assert kept.cost.iteration_s <= answer.cost.iteration_s


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_limited_search_is_as_good_as_the_best_choice_of_gpus():
    rows = kept_answers()
    sample = [case for case in limited_cases() if case.name in rows][:20]
    assert all(rows[case.name]["question"] == case.question for case in sample), "judge anew"
    found = sorted(
        throughput(replace(case.request, budget_evaluations=DEFAULT_EVALUATIONS))
        / rows[case.name]["samples_s"]
        for case in sample
    )
    assert statistics.median(found) >= 0.99
    assert found[0] >= 0.95
