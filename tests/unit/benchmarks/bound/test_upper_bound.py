"""The bound holds for every plan that any search finds, and is not far away."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bound.upper_bound import Intervals, bound
from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.errors import Infeasible
from planner.profiles.entries import LinkCost
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search
from tests.builders import compositions, demo_profile, nodes, work_on, workload


def ask(composition, profile=None, model=None, batch=32, **limits):
    profile = profile or demo_profile()
    asked = model or workload(batch)
    request = PlanRequest(
        workload=asked, composition=composition, **{"budget_evaluations": 300, **limits}
    )
    return request, profile, search(request, profile)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(compositions(most_nodes=2, most_gpus=4), st.integers(1, 40), st.sampled_from([1, 2, None]))
def test_no_plan_beats_the_bound(composition, batch, max_stages):
    try:
        request, profile, answer = ask(composition, batch=batch, max_stages=max_stages)
    except Infeasible:
        return
    found = bound(request, profile, answer)
    assert found.bound_samples_s >= answer.throughput_samples_s * (1 - 1e-9)
    assert found.gap_percent >= -1e-6


def test_on_one_gpu_it_is_reached():
    asked = work_on("gpt-neo-2.7b", 64, precision="fp16", zero=0, recompute="full", memory="paper")
    request, profile, answer = ask(Composition.from_text("h100=1x1"), find_profile(asked), asked)
    far = replace(answer, cost=replace(answer.cost, iteration_s=3 * answer.cost.iteration_s))
    limit = bound(request, profile, far).bound_samples_s
    assert answer.throughput_samples_s <= limit <= 1.01 * answer.throughput_samples_s


def test_on_one_small_node_it_is_near():
    request, profile, answer = ask(nodes("fast-0:2"))
    found = bound(request, profile, answer)
    assert found.gap_percent < 20.0


def test_it_names_what_it_assumes():
    request, profile, answer = ask(nodes("fast-0:2 slow-0:2"), max_stages=2)
    assumes = bound(request, profile, answer).bound_assumes
    assert "TP degrees 1, 2, inside a node" in assumes
    assert any(text.startswith("micro-batches") for text in assumes)


def test_the_answer_does_not_decide_the_bound():
    request, profile, answer = ask(nodes("fast-0:2 fast-1:2 slow-0:2"))
    slow = replace(answer, cost=replace(answer.cost, iteration_s=3 * answer.cost.iteration_s))
    one, other = bound(request, profile, answer), bound(request, profile, slow)
    assert one.bound_samples_s == pytest.approx(other.bound_samples_s, rel=0.03)


def test_gpus_without_a_profile_are_left_out():
    request, profile, answer = ask(nodes("fast-0:2 slow-0:2"))
    strange = (*request.composition.nodes, Node(name="strange-0", gpu_type="strange", gpus=4))
    found = bound(replace(request, composition=Composition(strange)), profile, answer)
    known = bound(request, profile, answer)
    assert found.bound_samples_s == known.bound_samples_s
    assert found.bound_assumes[-1] == "no GPU of type strange, which has no profile"
    assert known.bound_assumes == found.bound_assumes[:-1]


def test_more_gpus_never_lower_the_bound():
    request, profile, answer = ask(nodes("fast-0:2"), batch=64)
    slow = replace(answer, cost=replace(answer.cost, iteration_s=3 * answer.cost.iteration_s))
    limits = [
        bound(replace(request, composition=nodes(text)), profile, slow).bound_samples_s
        for text in ("fast-0:1", "fast-0:2", "fast-0:2 slow-0:2", "fast-0:2 fast-1:2 slow-0:2")
    ]
    assert all(more >= 0.99 * fewer for fewer, more in pairwise(limits))
    assert limits[-1] > 1.5 * limits[0]


def test_slow_networks_lower_it_only_where_messages_or_gradients_must_leave_a_node():
    profile = demo_profile()
    slow = LinkCost(1e-3, 1e6)
    slower = replace(profile, network=slow, nics=dict.fromkeys(profile.nics, slow))
    for text, is_lower in (("fast-0:4", False), ("fast-0:1 fast-1:1 fast-2:1", True)):
        request, _, answer = ask(nodes(text), profile)
        far = replace(answer, cost=replace(answer.cost, iteration_s=1e6))
        before, after = (bound(request, p, far).bound_samples_s for p in (profile, slower))
        assert (after < 0.99 * before) == is_lower


def test_intervals_cover_all_bottlenecks_and_halve_where_asked():
    intervals = Intervals.between(1, 0.01, 5.0)
    assert intervals.low_s[0] < 0.01
    assert intervals.high_s[-1] == math.inf
    intervals.least_s = np.arange(len(intervals.low_s), 0.0, -1.0)
    low_s = intervals.low_s.copy()
    chosen = intervals.below(3.0)
    assert chosen == [len(low_s) - 1, len(low_s) - 2]
    intervals.split(chosen)
    assert len(intervals.low_s) == len(low_s) + 1  # the last one has no upper end
    order = np.argsort(intervals.low_s)
    assert intervals.high_s[order][:-1] == pytest.approx(intervals.low_s[order][1:])


def test_a_limit_on_gpus_lowers_the_bound_and_no_plan_within_it_beats_it():
    composition = nodes("fast-0:2 fast-1:4 slow-0:4")
    known = math.inf
    for limits in (
        GpuLimits(),
        GpuLimits(6),
        GpuLimits(6, (("demo-fast", 3),)),
        GpuLimits(6, (("demo-fast", 0),)),
    ):
        request, profile, answer = ask(composition, max_gpus=limits)
        found = bound(request, profile, answer)
        assert answer.throughput_samples_s <= found.bound_samples_s * (1 + 1e-9) < known
        known = found.bound_samples_s
        assert (f"at most {limits}" in found.bound_assumes) == bool(limits)
