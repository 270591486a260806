"""Placed candidates: one form of a plan, and back."""

from __future__ import annotations

from planner.cluster.composition import Composition, Node
from planner.plans.hosts import with_hosts
from planner.plans.plan import faults
from planner.search.few_gpus.placed_candidate import (
    PlacedTemplate,
    candidate_of,
    canonical,
    plan_of,
    twins_of,
)
from planner.search.few_gpus.templates import counts_of
from tests.builders import demo_profile, nodes, placed, template, workload

PLAIN, SPREAD = ("none", 1, 0), ("none", 2, 1)
TP1 = ("demo-fast", 1)


def one_stage(*where, way=PLAIN, b=2) -> PlacedTemplate:
    return PlacedTemplate((TP1,), b, (6,), (way,), tuple((node,) for node in where))


def test_a_plan_and_its_candidate_say_the_same():
    composition = nodes("fast-0:2 fast-1:3 slow-0:1")
    plan = placed(template("2x4 1x2", 2, (3, 2)), composition=nodes("fast-0:3 fast-1:3"))
    candidate = candidate_of(plan, nodes("fast-0:3 fast-1:3"))
    assert plan_of(candidate, (3, 2), nodes("fast-0:3 fast-1:3")) == plan
    mixed = placed(
        template("2x3 1x3", 2, (4,)), template("1x2 1x4", 1, (8,)), composition=composition
    )
    again = plan_of(candidate_of(mixed, composition), (8, 4), composition)
    assert not faults(again, workload(16), composition)
    assert {row.stages for row in again.templates} == {row.stages for row in mixed.templates}


def test_templates_that_could_be_one_are_one():
    assert canonical((one_stage(1), one_stage(0))) == (one_stage(0, 1),)
    assert len(canonical((one_stage(1), one_stage(0, b=4)))) == 2


def test_spread_experts_keep_the_order_of_replicas():
    one, other = one_stage(0, 1, 0, 1, way=SPREAD), one_stage(0, 0, 1, 1, way=SPREAD)
    assert canonical((one,)) != canonical((other,))
    assert len(canonical((one, one))) == 2  # two groups of experts are not one


def test_nodes_that_are_alike_are_named_by_their_first_use():
    twins = twins_of(nodes("fast-0:2 fast-1:2 slow-0:2 fast-2:3"))
    assert twins == ((0, 1), (0, 1), (2,), (3,))
    assert canonical((one_stage(1, 1, 0),), twins) == canonical((one_stage(0, 0, 1),), twins)
    assert canonical((one_stage(3),), twins) == (one_stage(3),)


def test_a_straggler_is_no_twin():
    tired = Node(name="b", gpu_type="demo-fast", gpus=2, speed_factor=0.5)
    assert twins_of(Composition((Node(name="a", gpu_type="demo-fast", gpus=2), tired))) == (
        (0,),
        (1,),
    )


def test_a_candidate_counts_replicas_of_equal_stages_whatever_their_fill():
    assert counts_of((one_stage(0, 1), one_stage(2, b=4))) == (((TP1,), 3),)


def test_hosts_of_different_nodes_are_no_twins_where_their_nodes_count():
    there = Composition(
        tuple(Node(name=name, gpu_type="demo-fast", gpus=2, hosts=(1, 1)) for name in "ab")
    )
    hosted = with_hosts(there, demo_profile())
    assert twins_of(hosted) == ((0, 1, 2, 3),) * 4
    assert twins_of(hosted, by_node=True) == ((0, 1), (0, 1), (2, 3), (2, 3))
    assert twins_of(nodes("fast-0:2 fast-1:2"), by_node=True) == ((0, 1), (0, 1))
