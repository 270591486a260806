"""One piece table for all: what it says on random MoE plans, told again element by element."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from planner.cost.gradient_sync import _expert_messages, sync_messages
from planner.model.tensors import model_tensors
from planner.placement.place import holders_by_layer
from planner.plans.diff import moves
from planner.plans.movement import bytes_to_move, missing_bytes
from planner.plans.pieces import holders, holders_min, node_counts
from planner.plans.ranks import RankMap
from planner.plans.regions import common_refinement, regions_of
from tests.builders import MOE, moe_plans, piece_numels, seat_pieces

TIED = replace(MOE, name="tied", tied_head=True)
each_model = pytest.mark.parametrize("model", [MOE, TIED], ids=["apart", "tied"])


def elements(model, seat):
    """{(tensor, expert, row)} that a rank holds by the rule of tiling, one by one."""
    stage = seat.pipeline.template.stages[seat.stage]
    device = seat.pipeline.replica * stage.tp + seat.slot
    block, part = device // stage.expert_tp % stage.ep, device % stage.expert_tp
    found = set()
    for tensor in model_tensors(model):
        is_tied = tensor.name == "0.weight" and model.tied_head
        if tensor.layer not in seat.layers and not (is_tied and model.layers + 1 in seat.layers):
            continue
        experts, rows = range(1), range(tensor.rows)
        if tensor.experts:
            n, m = tensor.experts // stage.ep, tensor.rows // stage.expert_tp
            experts, rows = range(block * n, (block + 1) * n), range(part * m, (part + 1) * m)
        elif tensor.dim is not None:
            m = tensor.rows // stage.tp
            rows = range(seat.slot * m, (seat.slot + 1) * m)
        found |= {(tensor.name, expert, row) for expert in experts for row in rows}
    return found


@each_model
@given(moe_plans())
def test_the_table_says_of_each_element_who_holds_it(model, plan):
    table = holders(model, plan)
    held = {seat.rank: elements(model, seat) for seat in RankMap.of(plan).seats}
    seen = set()
    for piece, owners in table.items():
        box = {
            (piece.tensor, expert, row)
            for expert in range(piece.expert_start, piece.expert_stop)
            for row in range(piece.start, piece.stop)
        }
        assert not box & seen
        seen |= box
        ranks = {rank for copies in owners for rank in copies}
        for rank, mine in held.items():
            assert (box <= mine) if rank in ranks else not box & mine
    assert seen == set().union(*held.values())
    for seat in RankMap.of(plan).seats:
        mine = set(seat_pieces(model, seat, common_refinement([plan])))
        assert mine == {p for p, owners in table.items() if seat.rank in sum(owners, ())}


@each_model
@given(moe_plans())
def test_counts_of_holders_agree_with_the_table(model, plan):
    node = [seat.node for seat in RankMap.of(plan).seats]
    counts = {
        piece: len({node[rank] for copies in owners for rank in copies})
        for piece, owners in holders(model, plan).items()
    }
    assert node_counts(model, plan) == counts
    assert holders_min(model, plan) == holders_by_layer(model, plan) == min(counts.values())


@each_model
@given(moe_plans(), moe_plans())
def test_bytes_to_move_agree_with_the_table(model, current, plan):
    cuts = common_refinement([current, plan])
    sizes = piece_numels(model, cuts)
    before = {(s.node, s.gpu): set(seat_pieces(model, s, cuts)) for s in RankMap.of(current).seats}
    expected = {
        (seat.node, seat.gpu): 12
        * sum(
            sizes[piece]
            for piece in set(seat_pieces(model, seat, cuts))
            - before.get((seat.node, seat.gpu), set())
        )
        for seat in RankMap.of(plan).seats
    }
    assert missing_bytes(model, current, plan) == expected
    assert bytes_to_move(model, current, plan) == sum(expected.values())
    assert sum(moves(model, current, plan).values()) == sum(expected.values())


@each_model
@given(moe_plans())
def test_gradient_messages_agree_with_the_table(model, plan):
    """What the planner prices is what the runtime sums: the leads of all contributors."""
    sizes = piece_numels(model, common_refinement([plan]))
    expected: dict[tuple[int, ...], int] = {}
    for piece, owners in holders(model, plan).items():
        leads = tuple(copies[0] for copies in owners)
        if len(leads) > 1:
            expected[leads] = expected.get(leads, 0) + 4 * sizes[piece]
    ranks = RankMap.of(plan)
    priced = sync_messages(model, ranks, 4, experts=False)
    for leads, num_bytes in _expert_messages(model, ranks, 4).items():
        priced[leads] = priced.get(leads, 0) + num_bytes
    assert {leads: size for leads, size in priced.items() if len(leads) > 1} == expected


@each_model
@given(moe_plans())
def test_regions_hold_all_parameters_once(model, plan):
    regions = regions_of(model, common_refinement([plan]))
    assert regions.numel.sum() == sum(tensor.numel for tensor in model_tensors(model))
