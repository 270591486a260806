"""Owners under ZeRO 1: one of each row among the replicas of a template, and all rules by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migration.classes import bytes_missing, moving_classes
from migration.errors import StateLost
from planner.cost.memory import rule_of, slot_of, stepped_parameters
from planner.model.catalogue import find_model
from planner.model.tensors import held_tensors
from planner.model.workload import Workload
from planner.placement.place import holders_by_layer
from planner.plans.diff import moves
from planner.plans.movement import bytes_to_move, missing_bytes
from planner.plans.pieces import (
    Piece,
    contains,
    holders_min,
    is_empty,
    owned,
    owners,
    region_pieces,
    shard,
    tensor_pieces,
)
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage, faults
from planner.plans.ranks import RankMap
from planner.plans.regions import regions_of, state_refinement
from tests.builders import MOE, moe_plans, on_one_node, tiled, work_on
from tests.families import MIXTURES
from tests.laws.migration.changes import MODEL, TIED, Change, plans

zeros = st.sampled_from((0, 1))
ZERO_1 = moe_plans().map(lambda plan: plan.with_zero(1))


@given(ZERO_1)
def test_each_row_has_one_owner_among_the_replicas_of_a_stage(plan):
    """Of the seats that hold a row alike: those of one slot, or the copies of experts."""
    ranks = RankMap.of(plan)
    for t, template in enumerate(plan.templates):
        for s in range(len(template.stages)):
            seats = [ranks.seats[rank] for rank in ranks.stage_ranks(t, s)]
            for tensor in held_tensors(MOE, seats[0].layers):
                groups = {}
                for seat in seats:
                    slot = () if tensor.experts else (seat.slot,)
                    groups.setdefault((shard(tensor, seat), *slot), []).append(seat)
                for (held, *_), alike in groups.items():
                    own = [owned(tensor, seat) for seat in alike]
                    assert all(contains(held, one) for one in own)
                    rows = [row for one in own for row in range(one.start, one.stop)]
                    assert sorted(rows) == list(range(held.start, held.stop))
                    sizes = [one.stop - one.start for one in own]
                    assert max(sizes) - min(sizes) <= 1


def test_each_holder_owns_all_that_is_counted():
    model = MIXTURES["deepseek-v3"]
    plan = tiled("2x4", ep=2, etp=1, replicas=2).with_zero(1)
    regions = regions_of(model, state_refinement([plan]))
    for seat in RankMap.of(plan).seats:
        (bias, *_) = (one for one in held_tensors(model, seat.layers) if one.is_counted)
        whole = Piece(bias.name, 0, model.experts.count)
        assert owned(bias, seat) == shard(bias, seat) == whole
        assert whole in region_pieces(regions, regions.owned(seat))


@given(ZERO_1, moe_plans(), zeros)
def test_the_pieces_that_a_seat_owns_tile_its_boxes_under_any_cuts(plan, other, zero):
    cuts = state_refinement([plan, other.with_zero(zero)])
    regions = regions_of(MOE, cuts)
    for seat in RankMap.of(plan).seats[:6]:
        mine = region_pieces(regions, regions.owned(seat))
        boxes = {one.name: owned(one, seat) for one in held_tensors(MOE, seat.layers)}
        assert all(contains(boxes[piece.tensor], piece) for piece in mine)
        for tensor in held_tensors(MOE, seat.layers):
            inside = [p for p in tensor_pieces(tensor, cuts) if contains(boxes[tensor.name], p)]
            assert inside == [piece for piece in mine if piece.tensor == tensor.name]
            box = boxes[tensor.name]
            size = (box.stop - box.start) * (box.expert_stop - box.expert_start)
            rows = sum((p.stop - p.start) * (p.expert_stop - p.expert_start) for p in inside)
            assert rows == (0 if is_empty(box) else size)


@given(moe_plans())
def test_without_zero_a_seat_owns_what_it_holds(plan):
    regions = regions_of(MOE, state_refinement([plan]))
    for seat in RankMap.of(plan).seats:
        assert (regions.owned(seat) == regions.of_seat(seat)).all()


@given(ZERO_1)
def test_the_planner_counts_the_nodes_of_owners(plan):
    seats = RankMap.of(plan).seats
    nodes = [len({seats[rank].node for rank in own}) for own in owners(MOE, plan).values()]
    assert holders_min(MOE, plan) == min(nodes)
    assert holders_by_layer(MOE, plan) == holders_min(MOE, plan)
    if len(plan.templates) == 1:
        assert holders_min(MOE, plan) == 1


@given(plans(), zeros, plans(), zeros, st.sampled_from((MODEL, TIED)))
def test_the_bytes_of_a_change_are_those_that_owners_lack(current, before, plan, after, model):
    current, plan = current.with_zero(before), plan.with_zero(after)
    missing = missing_bytes(model, current, plan)
    assert bytes_to_move(model, current, plan) == sum(moves(model, current, plan).values())
    regions = regions_of(model, state_refinement([current, plan]))
    held = {(s.node, s.gpu): regions.owned(s) for s in RankMap.of(current).seats}
    for seat in RankMap.of(plan).seats:
        had = held.get((seat.node, seat.gpu), np.zeros(len(regions), dtype=bool))
        assert missing[seat.node, seat.gpu] == 12 * regions.numel[regions.owned(seat) & ~had].sum()


@pytest.mark.parametrize(
    ("name", "stages", "replicas"),
    [
        ("llama3-8b", ((2, 16, 1, 0), (1, 16, 1, 0)), 7),
        ("qwen3-32b", ((8, 64, 1, 0),), 13),
        ("mixtral-8x7b", ((2, 32, 4, 1),), 8),
        ("qwen3-30b-a3b", ((2, 24, 8, 1), (4, 24, 4, 2)), 12),
    ],
)
def test_a_rank_has_the_bytes_that_the_memory_rule_counts(name, stages, replicas):
    """Of weights, gradients and optimizer; the rule divides numbers, and owners have whole rows."""
    model = find_model(name)
    made = tuple(Stage(gpu_type="a", tp=tp, layers=n, ep=ep, etp=etp) for tp, n, ep, etp in stages)
    plan = on_one_node(FilledTemplate(made, 1, (1,) * replicas, 1))
    workload = work_on(model, replicas, 8, precision="bf16", zero=1, memory="worker")
    rule = rule_of(workload)
    assert faults(plan, workload) == ()
    regions = regions_of(model, state_refinement([plan]))
    for seat in RankMap.of(plan).seats:
        layers = made[seat.stage].layers
        counted = stepped_parameters(workload, slot_of(plan.templates[0], seat.stage, 1), layers)
        held = (rule.weight + rule.gradient) * int(regions.numel[regions.of_seat(seat)].sum())
        own = regions.numel[regions.owned(seat)].sum()
        assert held + rule.optimizer * own == pytest.approx(
            held + rule.optimizer * counted, rel=1e-3
        )


@pytest.mark.parametrize("templates", [1, 2])
@pytest.mark.parametrize("zero", [0, 1])
def test_a_lost_owner_costs_the_state_unless_another_template_owns_its_rows(templates, zero):
    """Without ZeRO each replica has all of it."""
    stages = (Stage(gpu_type="a", tp=1, layers=MODEL.layers),)
    twice, once = FilledTemplate(stages, 1, (1, 1)), FilledTemplate(stages, 1, (1,))
    spots = [PlacedStage(0, 0, 0, "n0", (0,)), PlacedStage(0, 1, 0, "n1", (0,))]
    spots += [PlacedStage(1, 0, 0, "n2", (0,))] * (templates - 1)
    old = Plan((twice, once)[:templates], tuple(spots)).with_zero(zero)
    new = Plan((once,), (spots[0],)).with_zero(zero)
    change = Change(old, new, frozenset({"n1"}))
    assert holders_min(MODEL, old) == (templates if zero else templates + 1)
    if zero and templates == 1:
        with pytest.raises(StateLost) as caught:
            moving_classes(change.held, change.needed)
        assert caught.value.code == "NoHolder"
    else:
        moved = sum(one.num_bytes for one in moving_classes(change.held, change.needed))
        assert moved == (zero and bytes_missing(change.held, change.needed)[0])


def test_a_plan_of_two_stages_of_zero_is_refused():
    stage = Stage(gpu_type="a", tp=1, layers=MODEL.layers)
    one = FilledTemplate((stage,), 1, (1,))
    mixed = Plan((one, FilledTemplate((stage,), 1, (1,), 1)), ())
    workload = Workload(model=MODEL, global_batch=2, sequence_length=8)
    assert any("ZeRO" in fault for fault in faults(mixed, workload))


def test_a_plan_names_its_stage_of_zero_and_one_without_keeps_its_digest():
    plan = on_one_node(FilledTemplate((Stage(gpu_type="a", tp=1, layers=3),), 1, (1, 1)))
    assert "zero" not in plan.to_json()["templates"][0]
    owning = plan.with_zero(1)
    assert owning.digest != plan.digest
    assert Plan.from_json(owning.to_json()) == owning
    assert owning.with_zero(0) == plan
