"""Steps between placed plans: what they change, and that they stay on the GPUs there are."""

from __future__ import annotations

from planner.placement.place import holders_by_layer
from planner.plans.plan import faults
from planner.search.few_gpus.moves import depth_moves, fill_moves, placement_moves, split_moves
from planner.search.few_gpus.placed_candidate import (
    PlacedTemplate,
    canonical,
    plan_of,
    twins_of,
)
from planner.search.few_gpus.templates import counts_of
from tests.builders import MODEL, nodes, workload

TP1, TP2 = ("demo-fast", 1), ("demo-fast", 2)
PLAIN, FULL = ("none", 1, 0), ("full", 1, 0)
COMPOSITION = nodes("fast-0:2 fast-1:2 fast-2:3")
PLAN = (
    PlacedTemplate((TP1, TP1), 2, (4, 2), (PLAIN, PLAIN), ((0, 0), (2, 2))),
    PlacedTemplate((TP2,), 2, (6,), (PLAIN,), ((1,),)),
)


def is_placed(candidate) -> bool:
    plan = plan_of(candidate, [1] * sum(len(draft.where) for draft in candidate), COMPOSITION)
    batch = sum(row.samples for row in plan.templates)
    return not faults(plan, workload(batch), COMPOSITION)


def test_a_fill_move_changes_one_thing_and_no_node():
    moves = list(fill_moves(PLAN, {TP1: (PLAIN, FULL), TP2: (PLAIN,)}, (2, 4)))
    assert all(is_placed(move) for move in moves)
    assert all([d.where for d in move] == [d.where for d in PLAN] for move in moves)
    assert (PLAN[0]._replace(layers=(3, 3)), PLAN[1]) in moves
    assert (PLAN[0]._replace(configurations=(PLAIN, FULL)), PLAN[1]) in moves
    assert (PLAN[0]._replace(configurations=(FULL, FULL)), PLAN[1]) in moves
    assert (PLAN[0], PLAN[1]._replace(micro_batch=4)) in moves
    assert tuple(draft._replace(micro_batch=4) for draft in PLAN) in moves


def test_a_placement_move_keeps_fill_and_gpus():
    moves = list(placement_moves(PLAN, COMPOSITION))
    assert all(is_placed(move) for move in moves)
    assert all([d[:4] for d in move] == [d[:4] for d in PLAN] for move in moves)


def test_stages_swap_go_to_idle_gpus_and_make_room_for_a_large_one():
    homes = [tuple(draft.where for draft in move) for move in placement_moves(PLAN, COMPOSITION)]
    assert (((2, 0), (0, 2)), ((1,),)) in homes  # a swap of two stages
    assert (((2, 0), (2, 2)), ((1,),)) in homes  # to the idle GPU
    assert (((1, 1), (2, 2)), ((0,),)) in homes  # two nodes, or two small stages for a large one
    assert (((0, 0), (1, 1)), ((2,),)) in homes


def test_replicas_swap_only_where_experts_are_spread():
    ways = (("none", 2, 1),) * 2
    spread = PlacedTemplate((TP1, TP1), 2, (4, 2), ways, ((0, 1), (2, 2)))
    plain = spread._replace(configurations=(PLAIN, PLAIN))
    swapped = ((2, 2), (0, 1))
    assert [swapped] in [[d.where for d in m] for m in placement_moves((spread,), COMPOSITION)]
    assert [swapped] not in [[d.where for d in m] for m in placement_moves((plain,), COMPOSITION)]


def test_equal_neighbours_on_one_node_join_and_a_stage_halves():
    known = {TP1: (PLAIN, FULL), TP2: (PLAIN,)}
    both = PLAN[0]._replace(configurations=(FULL, FULL))
    joined = PlacedTemplate((TP2,), 2, (6,), (PLAIN,), ((0,), (2,)))  # knows no recomputation
    halved = PlacedTemplate((TP1, TP1), 2, (3, 3), (PLAIN, PLAIN), ((1, 1),))
    assert list(depth_moves((both, PLAN[1]), known, 2)) == [(joined, PLAN[1]), (both, halved)]
    assert all(is_placed(move) for move in depth_moves(PLAN, known, 2))


def test_a_halved_stage_joins_again():
    known = {TP1: (PLAIN,), TP2: (PLAIN,)}
    three = (PlacedTemplate((TP1, TP2, TP2), 2, (1, 2, 3), (PLAIN,) * 3, ((1, 0, 2),)),)
    moves = list(depth_moves(three, known, 4))
    assert [move[0].layers for move in moves] == [(1, 1, 1, 3), (1, 2, 2, 1)]
    assert all(is_placed(move) and three in depth_moves(move, known, 4) for move in moves)


def test_depth_keeps_to_nodes_layers_tp_degrees_and_the_deepest():
    known = {TP1: (PLAIN,), TP2: (PLAIN,)}
    apart = (PLAN[0]._replace(where=((0, 0), (1, 2))),)
    unequal = (PlacedTemplate((TP1, TP2), 2, (5, 1), (PLAIN, PLAIN), ((2, 2),)),)
    assert not list(depth_moves(apart, known, 4))  # a TP group would cross nodes
    assert not list(depth_moves(unequal, known, 4))  # one layer, and no two TP degrees alike
    assert not list(depth_moves(PLAN[:1], {TP1: (PLAIN,)}, 4))  # TP 2 was not measured
    assert not list(depth_moves(PLAN[1:], {TP2: (PLAIN,)}, 4))  # nor was TP 1
    assert not list(depth_moves(PLAN[1:], known, 1))


def test_a_split_gives_some_replicas_a_fill_of_their_own():
    moves = list(split_moves(PLAN, {TP1: (PLAIN, FULL), TP2: (PLAIN,)}, (2, 4)))
    assert moves
    assert all(is_placed(move) for move in moves)
    assert {counts_of(move) for move in moves} == {counts_of(PLAN)}
    assert any({draft.micro_batch for draft in move} == {2, 4} for move in moves)
    assert holders_by_layer(MODEL, plan_of(moves[0], (1, 1, 1), COMPOSITION)) == 3


def test_of_idle_nodes_that_are_alike_the_first_stands_for_all():
    many = nodes("fast-0:2 fast-1:2 fast-2:3 fast-3:2 fast-4:2 fast-5:2")
    twins = twins_of(many)
    every = {canonical(move, twins) for move in placement_moves(PLAN, many)}
    few = list(placement_moves(PLAN, many, twins))
    assert {canonical(move, twins) for move in few} == every
    assert len(few) < len(list(placement_moves(PLAN, many)))
