"""Placement: TP groups stay on one node, GPUs are given once, what fits is placed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from planner.placement.place import can_pack, holders_by_layer, place, room_of
from planner.plans.movement import bytes_to_move, missing_bytes
from planner.plans.pieces import holders, holders_min
from planner.plans.plan import Plan, faults
from planner.plans.ranks import RankMap
from planner.plans.regions import common_refinement
from tests.builders import (
    MODEL,
    compositions,
    filled_templates,
    piece_numels,
    plans_on,
    seat_pieces,
    workload_of,
)


@given(compositions().flatmap(lambda c: st.tuples(st.just(c), plans_on(c))))
def test_a_placed_plan_has_no_fault(case):
    composition, plan = case
    assert faults(plan, workload_of(plan), composition) == ()


@given(
    compositions().flatmap(
        lambda c: st.tuples(st.just(c), st.lists(filled_templates(c), min_size=1, max_size=3))
    )
)
def test_templates_are_placed_exactly_when_their_groups_pack(case):
    composition, templates = case
    groups = Counter(
        (stage.gpu_type, stage.tp)
        for template in templates
        for stage in template.stages
        for _ in range(template.replicas)
    )
    for min_holders in (1, 2):
        where = place(MODEL, templates, composition, min_holders)
        assert (where is not None) == can_pack(groups, room_of(composition))


@given(
    compositions().flatmap(lambda c: st.tuples(st.just(c), plans_on(c), plans_on(c), st.booleans()))
)
def test_placing_by_the_current_plan_is_sound_too(case):
    composition, current, plan, spread = case
    where = place(MODEL, plan.templates, composition, 2 if spread else 1, current)
    assert faults(Plan(plan.templates, where), workload_of(plan), composition) == ()


@given(compositions().flatmap(plans_on))
def test_holders_by_layer_agree_with_the_piece_table(plan):
    assert holders_by_layer(MODEL, plan) == holders_min(MODEL, plan)
    assert all(owners for owners in holders(MODEL, plan).values())


@given(compositions().flatmap(lambda c: st.tuples(plans_on(c), plans_on(c))))
def test_bytes_to_move_agree_with_the_piece_table(case):
    current, plan = case
    cuts = common_refinement([current, plan])
    sizes = piece_numels(MODEL, cuts)
    before = {
        (seat.node, seat.gpu): set(seat_pieces(MODEL, seat, cuts))
        for seat in RankMap.of(current).seats
    }
    expected = {
        (seat.node, seat.gpu): 12
        * sum(
            sizes[piece]
            for piece in seat_pieces(MODEL, seat, cuts)
            if piece not in before.get((seat.node, seat.gpu), ())
        )
        for seat in RankMap.of(plan).seats
    }
    assert missing_bytes(MODEL, current, plan) == expected
    assert bytes_to_move(MODEL, current, plan) == sum(expected.values())


@given(compositions().flatmap(lambda c: st.tuples(st.just(c), plans_on(c))))
def test_a_plan_placed_again_by_itself_moves_nothing_or_less_than_afresh(case):
    composition, plan = case
    again = Plan(plan.templates, place(MODEL, plan.templates, composition, 1, plan))
    assert bytes_to_move(MODEL, plan, plan) == 0
    afresh = Plan(plan.templates, place(MODEL, plan.templates, composition))
    assert bytes_to_move(MODEL, plan, again) <= bytes_to_move(MODEL, plan, afresh)
