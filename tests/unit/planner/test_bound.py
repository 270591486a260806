"""The bound holds for every plan that any search finds, and is not far away."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bound import Proof, bound, node_worth
from planner.cluster.composition import Composition
from planner.errors import Infeasible
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search
from tests.builders import compositions, demo_profile, nodes, workload


def ask(composition, profile=None, model=None, batch=32, **wishes):
    profile = profile or demo_profile()
    asked = model or workload(batch)
    request = PlanRequest(asked, composition, **{"budget_evaluations": 300, **wishes})
    return request, profile, search(request, profile)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(compositions(most_nodes=2, most_gpus=4), st.integers(1, 40), st.sampled_from([1, 2, None]))
def test_no_plan_beats_the_bound(composition, batch, d_max):
    try:
        request, profile, answer = ask(composition, batch=batch, d_max=d_max)
    except Infeasible:
        return
    found = bound(request, profile, answer)
    assert found.bound_samples_s is not None
    assert found.gap_percent is not None
    assert found.bound_samples_s >= answer.throughput_samples_s * (1 - 1e-9)
    assert found.gap_percent >= -1e-6


def test_on_one_small_node_it_is_near():
    request, profile, answer = ask(nodes("fast-0:2"))
    found = bound(request, profile, answer)
    assert found.gap_percent < 20.0


def test_it_names_what_it_assumes():
    request, profile, answer = ask(nodes("fast-0:2 slow-0:2"), d_max=2)
    assumes = bound(request, profile, answer).bound_assumes
    assert "at most 2 stages a replica" in assumes
    assert any(text.startswith("micro-batches") for text in assumes)


def test_the_answer_does_not_decide_the_bound():
    request, profile, answer = ask(nodes("fast-0:2 fast-1:2 slow-0:2"))
    slow = replace(answer, price=replace(answer.price, iteration_s=3 * answer.price.iteration_s))
    one, other = bound(request, profile, answer), bound(request, profile, slow)
    assert one.bound_samples_s == pytest.approx(other.bound_samples_s, rel=0.03)


@pytest.mark.parametrize(("short", "is_finer"), [(0, False), (10**9, True)])
def test_a_proof_that_was_short_is_made_again_with_finer_cells(monkeypatch, short, is_finer):
    model = Workload(find_model("llama3-8b"), 512, 2048)
    composition = Composition.from_text("a100-40=3x4,h100=2x4")
    request, profile, answer = ask(composition, find_profile(model), model)
    monkeypatch.setattr("planner.bound.SHORT", 0)
    coarse = bound(request, profile, answer)
    monkeypatch.setattr("planner.bound.SHORT", short)
    found = bound(request, profile, answer)
    assert found.bound_samples_s >= answer.throughput_samples_s
    if is_finer:
        assert found.bound_samples_s < coarse.bound_samples_s
    else:
        assert found == coarse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "text"),
    [("llama3-8b", "a100-40=3x4,h100=2x4"), ("qwen3-30b-a3b", "h100=2x8")],
)
def test_it_holds_for_large_models_and_is_near(model, text):
    shape = find_model(model)
    asked = Workload(shape, 512, 2048, "fp16", 0, shape.recompute)
    composition = Composition.from_text(text)
    request, profile, answer = ask(
        composition, find_profile(asked), asked, budget_evaluations=3000, d_max=12
    )
    found = bound(request, profile, answer)
    assert 0 <= found.gap_percent < 60


def test_both_ends_of_the_bisection_were_tried():
    request, profile, answer = ask(nodes("fast-0:2 fast-1:2"))
    proof = Proof(pricing_of(request.workload, request.composition, profile), request, profile)
    iteration_s = answer.price.iteration_s
    least_s = proof.least_seconds(iteration_s, pipelines=2)
    regimes = proof.regimes(iteration_s)
    assert all(proof.rules_out(least_s, regime) for regime in regimes)
    if least_s < iteration_s:
        assert not all(proof.rules_out(least_s * 1.008, regime) for regime in regimes)


def test_more_of_the_faster_type_is_worth_more():
    request, profile, answer = ask(nodes("fast-0:2 slow-0:2"))
    worth = node_worth(request, profile, answer)
    assert worth["demo-fast"] > worth["demo-slow"] >= 0
    assert math.isfinite(worth["demo-fast"])
