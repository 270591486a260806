"""Regions: some thousand rows say where tens of thousands of tensors live."""

from __future__ import annotations

import numpy as np
import pytest

from planner.model.catalogue import find_model
from planner.model.experts import Experts
from planner.model.shape import ModelShape
from planner.model.tensors import model_numel, model_tensors
from planner.plans.pieces import tensor_pieces
from planner.plans.ranks import RankMap
from planner.plans.regions import Cuts, common_refinement, cut_points, regions_of, share_of
from tests.builders import MOE, on_one_node, template, tiled


def test_cuts_are_the_common_refinement():
    assert cut_points(8, frozenset({2, 4})) == (0, 2, 4, 6, 8)
    assert cut_points(8, frozenset({1})) == (0, 8)


def test_several_plans_share_their_cuts():
    plans = (on_one_node(template("2x6")), on_one_node(template("1x3 1x3")))
    assert common_refinement(plans).tp == {1, 2}
    assert common_refinement([tiled("2x3", ep=2, etp=1)]) == Cuts(
        frozenset({2}), frozenset({2}), frozenset({1})
    )


def test_a_region_is_a_share_of_a_layer():
    """Per MoE block: what is whole, two runs of rows, and four experts in two parts each."""
    regions = regions_of(MOE, Cuts(frozenset({2}), frozenset({4}), frozenset({2})))
    assert (regions.layer == 3).sum() == 1 + 2 + 4 * 2
    assert (regions.layer == 1).sum() == 1 + 2  # dense
    (seat, *_) = RankMap.of(tiled("2x3", ep=1, etp=2)).seats
    mine = regions.of_seat(seat) & (regions.layer == 3)
    assert mine.sum() == 1 + 1 + 4


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-32b", "mixtral-8x7b"])
def test_no_parameter_is_lost_where_no_degree_divides_the_rows(model):
    """As owners of ZeRO 1 would cut."""
    model = find_model(model)
    cuts = Cuts(frozenset({1, 3, 7}), frozenset({1, 3}), frozenset({2, 5}))
    regions = regions_of(model, cuts)
    assert regions.numel.sum() == model_numel(model)
    held = np.zeros(len(regions), dtype=np.int64)
    for tensor in model_tensors(model):
        first = regions.first[tensor.layer, share_of(tensor)]
        for index, piece in enumerate(tensor_pieces(tensor, cuts), first):
            experts = piece.expert_stop - piece.expert_start
            held[index] += experts * (piece.stop - piece.start) * tensor.row_numel
    assert (held == regions.numel).all()


def test_a_model_of_45_000_expert_tensors_has_few_regions():
    model = ModelShape(
        name="deep",
        layers=61,
        hidden=64,
        heads=8,
        kv_heads=8,
        ffn=64,
        vocab=128,
        experts=Experts(count=256, per_token=8, ffn=64, shared=1, dense_blocks=3),
    )
    plan = tiled("1x61", ep=64, replicas=64)
    assert len(regions_of(model, common_refinement([plan]))) < 4000
