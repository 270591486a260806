"""One piece table for all: what it says on random MoE plans, told again element by element."""

from __future__ import annotations

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


def elements(seat):
    """{(tensor, expert, row)} that a rank holds by the rule of tiling, one by one."""
    stage = seat.pipeline.template.stages[seat.stage]
    device = seat.pipeline.replica * stage.tp + seat.slot
    block, part = device // stage.expert_tp % stage.ep, device % stage.expert_tp
    found = set()
    for tensor in model_tensors(MOE):
        if tensor.layer not in seat.layers:
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


@given(moe_plans())
def test_the_table_says_of_each_element_who_holds_it(plan):
    table = holders(MOE, plan)
    held = {seat.rank: elements(seat) for seat in RankMap.of(plan).seats}
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
        mine = set(seat_pieces(MOE, seat, common_refinement([plan])))
        assert mine == {p for p, owners in table.items() if seat.rank in sum(owners, ())}


@given(moe_plans())
def test_counts_of_holders_agree_with_the_table(plan):
    node = [seat.node for seat in RankMap.of(plan).seats]
    counts = {
        piece: len({node[rank] for copies in owners for rank in copies})
        for piece, owners in holders(MOE, plan).items()
    }
    assert node_counts(MOE, plan) == counts
    assert holders_min(MOE, plan) == holders_by_layer(MOE, plan) == min(counts.values())


@given(moe_plans(), moe_plans())
def test_bytes_to_move_agree_with_the_table(current, plan):
    cuts = common_refinement([current, plan])
    sizes = piece_numels(MOE, cuts)
    before = {(s.node, s.gpu): set(seat_pieces(MOE, s, cuts)) for s in RankMap.of(current).seats}
    expected = {
        (seat.node, seat.gpu): 12
        * sum(
            sizes[piece]
            for piece in set(seat_pieces(MOE, seat, cuts))
            - before.get((seat.node, seat.gpu), set())
        )
        for seat in RankMap.of(plan).seats
    }
    assert missing_bytes(MOE, current, plan) == expected
    assert bytes_to_move(MOE, current, plan) == sum(expected.values())
    assert sum(moves(MOE, current, plan).values()) == sum(expected.values())


@given(moe_plans())
def test_gradient_messages_agree_with_the_table(plan):
    """What the planner prices is what the runtime sums: the leads of all contributors."""
    sizes = piece_numels(MOE, common_refinement([plan]))
    expected: dict[tuple[int, ...], int] = {}
    for piece, owners in holders(MOE, plan).items():
        leads = tuple(copies[0] for copies in owners)
        if len(leads) > 1:
            expected[leads] = expected.get(leads, 0) + 4 * sizes[piece]
    ranks = RankMap.of(plan)
    priced = sync_messages(MOE, ranks, experts=False)
    for leads, num_bytes in _expert_messages(MOE, ranks, 4).items():
        priced[leads] = priced.get(leads, 0) + num_bytes
    assert {leads: size for leads, size in priced.items() if len(leads) > 1} == expected


@given(moe_plans())
def test_regions_hold_all_parameters_once(plan):
    regions = regions_of(MOE, common_refinement([plan]))
    assert regions.numel.sum() == sum(tensor.numel for tensor in model_tensors(MOE))
