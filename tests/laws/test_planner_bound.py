"""No plan that the one evaluator prices beats the bound, on nodes and links of all kinds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.bound.upper_bound import bound
from benchmarks.planner.compositions import cases
from benchmarks.planner.references import BenchmarkReferences
from planner.cluster.composition import Composition, Node
from planner.cost.evaluate import cost_of
from planner.errors import Infeasible
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.entries import LinkCost
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.request import PlanAnswer, PlanRequest
from planner.search.driver import search

TYPES = ("a100-40", "a6000", "h100")
MODELS = ("llama3-8b", "gpt-neo-2.7b")
CASES = {case.name: case for case in cases()}
FEW_GPUS = 32
ROWS = [
    row
    for row in BenchmarkReferences.load().rows.values()
    if CASES[row.case].composition.gpus <= FEW_GPUS
]


@cache
def profile_of(workload: Workload, *, measured: bool) -> Profile:
    """Modelled; or with links as measured, by size, and no word about rings."""
    profile = find_profile(workload)
    if not measured:
        return profile

    def by_size(link: LinkCost) -> LinkCost:
        sizes = (1e3, 1e6, 3e7, 1e9)
        return replace(link, points=tuple((size, link.seconds(size / 2)) for size in sizes))

    return replace(
        profile,
        rings={},
        network=by_size(profile.network),
        nics={name: by_size(link) for name, link in profile.nics.items()},
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[PlanRequest, Profile]:
    model = find_model(draw(st.sampled_from(MODELS)))
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True))
    nodes = [
        Node(
            name=f"{kind}-{number}",
            gpu_type=kind,
            gpus=draw(st.sampled_from((1, 2, 3, 4, 8))),
            speed_factor=draw(st.sampled_from((1.0, 1.0, 0.8))),
            nic_bytes_per_s=draw(st.sampled_from((None, None, 1e9))),
        )
        for kind in kinds
        for number in range(draw(st.integers(1, 3)))
    ]
    batch = draw(st.sampled_from((16, 64, 300)))
    workload = Workload(
        model=model,
        global_batch=batch,
        sequence_length=2048,
        precision="fp16",
        zero=draw(st.integers(0, 1)),
        recompute=model.recompute,
    )
    request = PlanRequest(
        workload=workload,
        composition=Composition(tuple(nodes)),
        budget_evaluations=draw(st.sampled_from((100, 400))),
        max_stages=draw(st.sampled_from((4, 8, None))),
    )
    return request, profile_of(workload, measured=draw(st.booleans()))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(requests())
def test_no_plan_of_a_search_beats_the_bound(case):
    request, profile = case
    try:
        answer = search(request, profile)
    except Infeasible:
        assume(False)
    slower = replace(answer, cost=replace(answer.cost, iteration_s=1.3 * answer.cost.iteration_s))
    limit = bound(request, profile, slower).bound_samples_s
    assert answer.throughput_samples_s <= limit * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model}-{row.case}")
def test_no_reference_plan_beats_the_bound(row):
    case = CASES[row.case]
    workload = case.workload(row.model)
    profile = find_profile(workload)
    assert row.plan is not None
    priced = cost_of(row.plan, workload, case.composition, profile)
    slower = replace(priced, iteration_s=1.3 * priced.iteration_s)
    request = PlanRequest(workload=workload, composition=case.composition)
    limit = bound(
        request,
        profile,
        PlanAnswer(
            plan=row.plan,
            cost=slower,
            holders_min=1,
            stages_of_search=(),
            planning_s=0.0,
            bytes_to_move=None,
            idle=(),
        ),
    )
    assert priced.throughput_samples_s <= limit.bound_samples_s * (1 + 1e-9)
