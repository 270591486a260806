"""The committed reference plans of the planner's benchmark are plans, at the prices they state."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.references import Reference, compact, expanded
from benchmarks.planner.compositions import BATCHES, HUGE_GPUS, TYPES, cases
from benchmarks.planner.references import BenchmarkReferences
from planner.cost.evaluate import cost_of
from planner.plans.plan import faults
from planner.profiles.generator import find_profile

CASES = {case.name: case for case in cases()}
ROWS = sorted(BenchmarkReferences.load().rows.values(), key=lambda row: (row.model, row.case))
SMALL = [row for row in ROWS if CASES[row.case].composition.gpus <= 128]
LARGE = [row for row in ROWS if CASES[row.case].composition.gpus > 128]


def named(reference: Reference) -> str:
    return f"{reference.model}-{reference.case}"


def states_its_cost(reference: Reference) -> None:
    assert reference.plan is not None
    case = CASES[reference.case]
    workload, composition = case.workload(reference.model), case.composition
    assert not faults(reference.plan, workload, composition)
    profile = find_profile(workload)
    priced = cost_of(reference.plan, workload, composition, profile)
    assert priced.throughput_samples_s == pytest.approx(reference.throughput_samples_s, rel=1e-9), (
        "run `python -m benchmarks.planner reprice`, which prices them again"
    )
    for replica in priced.replicas:
        stages = reference.plan.templates[replica.template].stages
        for stage, kind in zip(replica.stages, stages, strict=True):
            assert stage.peak_memory_bytes <= profile.gpu_type(kind.gpu_type).usable_bytes


@pytest.mark.parametrize("reference", SMALL, ids=named)
def test_a_reference_states_todays_price(reference):
    states_its_cost(reference)


@pytest.mark.slow
@pytest.mark.parametrize("reference", LARGE, ids=named)
def test_a_large_reference_states_todays_price(reference):
    states_its_cost(reference)


def test_every_committed_reference_is_of_a_composition_that_is_still_generated():
    assert ROWS
    assert {row.model for row in ROWS} >= {"llama3-8b", "qwen3-32b"}


def test_a_compact_plan_reads_back_equal():
    plan = ROWS[0].plan
    assert plan is not None
    assert expanded(compact(plan)) == plan


def test_the_compositions_are_those_that_the_goals_speak_of():
    usual = [case for case in CASES.values() if case.composition.gpus < HUGE_GPUS]
    assert len(usual) == 30
    assert len(CASES) == 33
    assert all(32 <= case.composition.gpus <= 512 for case in usual)
    assert all(2 <= len(case.composition.gpu_types) <= 4 for case in CASES.values())
    assert {t for case in usual for t in case.composition.gpu_types} == set(TYPES)
    assert {sum(case.batch == b for case in usual) for b in BATCHES} == {15}
    mixed = [case for case in usual if "+" in case.text]
    assert 10 <= len(mixed) <= 20
