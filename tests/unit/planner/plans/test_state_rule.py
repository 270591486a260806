"""plans/state_rule.py: one rule of the parts of the state, their bytes and their holders."""

from __future__ import annotations

import pytest
from hypothesis import given

from planner.cost.memory import RULES
from planner.plans.ranks import RankMap
from planner.plans.regions import common_refinement, regions_of
from planner.plans.state_rule import OWNED, PARTS, copies, element_bytes
from tests.builders import MOE, OWNERS, moe_plans


@pytest.mark.parametrize(("precision", "weight", "optimizer"), [("fp32", 4, 8), ("bf16", 2, 12)])
def test_the_planner_counts_the_bytes_of_the_rule(precision, weight, optimizer):
    assert element_bytes(PARTS) == 12
    rule = RULES["worker"][precision]
    assert (rule.weight, rule.gradient, rule.optimizer) == (weight, 4, optimizer)
    assert rule.weight + rule.optimizer == element_bytes((*PARTS, *copies(precision)))


@given(moe_plans())
def test_without_zero_every_holder_has_all_parts(plan):
    seats = RankMap.of(plan).seats
    regions = regions_of(MOE, common_refinement([plan]))
    ((parts, mask),) = OWNED.masks(regions, [[seat] for seat in seats]).items()
    assert parts == PARTS
    assert (mask == regions.held(seats)).all()


@given(moe_plans(), moe_plans())
def test_a_member_has_what_it_holds_in_two_plans_and_none_holds_nothing(one, other):
    regions = regions_of(MOE, common_refinement([one, other]))
    first, second = RankMap.of(one).seats[0], RankMap.of(other).seats[-1]
    for mask in OWNERS.masks(regions, [[first], [second], [first, second], []]).values():
        assert (mask[2] == mask[0] | mask[1]).all()
        assert not mask[3].any()
