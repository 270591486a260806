"""Ranks: every seat once, TP groups in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from planner.plans.ranks import RankMap
from tests.builders import MODEL, compositions, moe_plans, on_one_node, plans_on, template


@given(compositions().flatmap(plans_on))
def test_every_rank_sits_once_and_every_pipeline_holds_every_layer_once(plan):
    ranks = RankMap.of(plan)
    assert [seat.rank for seat in ranks.seats] == list(range(plan.gpus))
    sample = 0
    for pipeline in ranks.pipelines:
        layers = [layer for group in pipeline.ranks for layer in ranks.seats[group[0]].layers]
        assert layers == list(range(MODEL.layers + 2))
        assert pipeline.first_sample == sample
        sample += pipeline.samples


def test_a_tp_group_is_a_run_of_ranks_in_slot_order():
    seats = RankMap.of(on_one_node(template("2x4 1x2", 2, (3, 2)))).seats
    assert [(s.stage, s.slot, s.tp_ranks) for s in seats[:3]] == [
        (0, 0, (0, 1)),
        (0, 1, (0, 1)),
        (1, 0, (2,)),
    ]
    assert [seat.gpu for seat in seats] == [0, 1, 2, 3, 4, 5]
    assert seats[3].pipeline.replica == 1
    assert (seats[0].tp, seats[0].gpu_type, seats[0].layers) == (2, "demo-fast", range(5))


@pytest.mark.parametrize(
    ("tp", "ep", "etp"), [(2, 2, 2), (1, 4, 1), (2, 2, 1), (1, 1, 4), (4, 1, 2)]
)
def test_tokens_travel_among_ranks_that_have_all_experts_once_and_all_parts_of_each(tp, ep, etp):
    plain = template(f"{tp}x6", 1, (1,) * (8 // tp))
    stage = replace(plain.stages[0], ep=ep, etp=etp)
    ranks = RankMap.of(on_one_node(replace(plain, stages=(stage,))))
    for seat in ranks.seats:
        spread, run = seat.expert_ranks
        assert seat.rank in spread
        assert seat.rank in run
        assert [ranks.seats[r].expert_block for r in spread] == [(b, ep) for b in range(ep)]
        assert {ranks.seats[r].expert_part for r in spread} == {seat.expert_part}
        assert [ranks.seats[r].expert_part for r in run] == [(p, etp) for p in range(etp)]
        assert {ranks.seats[r].expert_block for r in run} == {seat.expert_block}
    first = [seat.rank for seat in ranks.seats if seat.is_first_copy]
    assert first == list(range(ep * etp))


def test_replicas_whose_tokens_stay_at_home_have_rounds_of_their_own():
    plain = template("2x6", 1, (3, 1))
    for ep, etp, rounds in ((1, 2, [3, 1]), (2, 1, [3, 1]), (1, 1, [3, 1]), (4, 1, [3, 3])):
        stage = replace(plain.stages[0], ep=ep, etp=etp)
        plan = on_one_node(replace(plain, stages=(stage,)))
        assert [one.rounds for one in RankMap.of(plan).pipelines] == rounds


@given(moe_plans())
def test_a_seat_names_the_ranks_that_hold_what_it_holds_in_the_order_of_their_shares(plan):
    """Counted from the seat alone: what one seat costs, whatever the number of ranks."""
    ranks = RankMap.of(plan.with_zero(1))
    for seat in ranks.seats:
        stage = [
            one
            for one in ranks.seats
            if (one.pipeline.template_index, one.stage)
            == (seat.pipeline.template_index, seat.stage)
        ]
        dense, experts = seat.owner_ranks
        assert dense == tuple(one.rank for one in stage if one.slot == seat.slot)
        alike = (seat.expert_block, seat.expert_part)
        held = tuple(one.rank for one in stage if (one.expert_block, one.expert_part) == alike)
        assert experts == held
        assert seat.owner == (dense.index(seat.rank), len(dense))
        assert seat.expert_owner == (experts.index(seat.rank), len(experts))
