"""What a baseline says, in the words of Heddle's plans."""

from __future__ import annotations

import pytest

from benchmarks.baselines.layout import Grid, GridStage, Group, Layout, carve, shares_of
from planner.cluster.composition import Composition
from planner.plans.plan import faults
from tests.baselines import question


def group(gpu_type, *gpus, samples=1):
    return Group(gpu_type, tuple((gpu_type + "-0", gpu) for gpu in gpus), samples)


def layout(*stages, micro_batches=(4, 4)):
    return Layout((Grid(tuple(GridStage(2, groups) for groups in stages), micro_batches),))


def test_replicas_with_other_types_become_templates_of_their_own():
    said = layout((group("h100", 0), group("a100-40", 0)), (group("h100", 1), group("a100-40", 1)))
    asked = question("h100=1x2,a100-40=1x2")
    plan = said.as_plan()
    assert faults(plan, asked.workload, asked.composition) == ()
    assert [template.replicas for template in plan.templates] == [1, 1]
    assert Layout.of_plan(plan).gpus == said.gpus


def test_a_plan_is_the_same_after_a_walk_through_the_layout():
    plan = layout((group("h100", 0), group("h100", 1)), (group("h100", 2), group("h100", 3)))
    again = Layout.of_plan(plan.as_plan()).as_plan()
    assert again.digest == plan.as_plan().digest


@pytest.mark.parametrize(
    ("said", "beyond"),
    [
        (layout((group("h100", 0),), (group("h100", 1), group("h100", 2))), "DP differs by stage"),
        (
            layout((group("h100", 0),), (group("h100", 1, samples=2),)),
            "replicas of a stage take unequal micro-batches",
        ),
        (
            layout((Group("h100", (("h100-0", 0), ("h100-1", 0)), 1),)),
            "a TP group crosses nodes",
        ),
    ],
)
def test_what_plans_cannot_say_is_named(said, beyond):
    assert said.beyond_plans() == beyond
    with pytest.raises(ValueError, match=beyond):
        said.as_plan()


def test_tp_groups_are_carved_inside_nodes_and_large_ones_first():
    nodes = Composition.from_text("h100=1x4+2x1")
    found = carve(nodes, [("h100", 1), ("h100", 4), ("h100", 1)])
    assert found is not None
    assert [len({node for node, _ in group}) for group in found] == [1, 1, 1]
    assert len({gpu for group in found for gpu in group}) == 6
    assert carve(nodes, [("h100", 2), ("h100", 4)]) is None


def test_shares_are_even_and_whole():
    assert shares_of(10, 4) == (3, 3, 2, 2)
