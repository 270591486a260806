"""Templates that are alike are one: nothing about any replica changes, nor does the price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.evaluate import cost_of
from planner.plans.canonical import joined
from planner.plans.plan import FilledTemplate, PlacedStage, Plan
from tests.builders import compositions, demo_profile, on_one_node, plans_on, template, workload_of


def parted(plan: Plan, numbers: list[int]) -> Plan:
    """The plan with every template cut in two after so many of its replicas, where it has more."""
    templates: list[FilledTemplate] = []
    placement: list[PlacedStage] = []
    for index, filled in enumerate(plan.templates):
        cut = numbers[index % len(numbers)]
        parts = [filled.micro_batches[:cut], filled.micro_batches[cut:]]
        first = len(templates)
        templates += [replace(filled, micro_batches=part) for part in parts if part]
        for one in plan.placement:
            if one.template == index:
                number, replica = first, one.replica
                if 0 < cut <= replica:
                    number, replica = first + 1, replica - cut
                placement.append(replace(one, template=number, replica=replica))
    return Plan(tuple(templates), tuple(placement))


@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_what_was_one_template_is_one_again(data, numbers):
    composition = data.draw(compositions())
    plan = joined(data.draw(plans_on(composition)))
    apart = parted(plan, numbers)
    assert joined(apart) == plan
    workload = workload_of(plan)
    before = cost_of(apart, workload, composition, demo_profile())
    after = cost_of(plan, workload, composition, demo_profile())
    assert after.iteration_s == pytest.approx(before.iteration_s, rel=1e-12)
    assert after.peak_memory_bytes == before.peak_memory_bytes


@pytest.mark.parametrize(
    "other",
    [
        template("1x2 1x4", 2, (3,)),  # other layers
        template("2x3 1x3", 2, (3,)),  # another TP degree
        template("1x3 1x3", 1, (3,)),  # another micro-batch
    ],
)
def test_templates_that_differ_stay_apart(other):
    one = template("1x3 1x3", 2, (3,))
    plan = on_one_node(one, other)
    assert joined(plan) is plan
    assert len(joined(on_one_node(one, one)).templates) == 1


def test_replicas_that_share_experts_stay_with_their_own():
    one = template("1x6", 1, (3, 3))
    tiled = replace(one, stages=tuple(replace(stage, ep=2, etp=1) for stage in one.stages))
    plan = on_one_node(tiled, tiled)
    assert joined(plan) is plan
