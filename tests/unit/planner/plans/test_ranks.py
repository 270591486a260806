"""Ranks: every seat once, TP groups in a row."""

from __future__ import annotations

from hypothesis import given

from planner.plans.ranks import RankMap
from tests.builders import MODEL, compositions, on_one_node, plans_on, template


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
