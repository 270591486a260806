"""Placement: each rule on its own."""

from __future__ import annotations

from planner.placement.place import can_pack, holders_by_layer, place, room_of
from planner.plans.plan import Plan
from tests.builders import MODEL, nodes, placed, template


def room(text: str):
    return room_of(nodes(text))


def where(*templates, text: str, **wishes) -> list[str]:
    found = place(MODEL, templates, nodes(text), **wishes)
    return [f"{p.node}:{','.join(map(str, p.gpus))}" for p in found]


def test_an_exact_node_is_taken_before_a_larger_one_is_carved():
    assert where(template("2x6"), text="fast-0:4 fast-1:2") == ["fast-1:0,1"]


def test_ties_go_by_name():
    assert where(template("2x6"), text="fast-1:2 fast-0:2") == ["fast-0:0,1"]


def test_a_replica_stays_on_one_node_where_it_can():
    assert where(template("1x3 1x3"), text="fast-0:1 fast-1:2") == ["fast-1:0", "fast-1:1"]


def test_copies_go_to_different_nodes_when_more_holders_are_asked():
    row = template("2x6", 1, (1, 1))
    assert where(row, text="fast-0:4 fast-1:6") == ["fast-0:0,1", "fast-0:2,3"]
    spread = where(row, text="fast-0:4 fast-1:6", min_holders=2)
    assert spread == ["fast-0:0,1", "fast-1:0,1"]


def test_pieces_stay_where_they_are():
    composition = nodes("fast-0:2 fast-1:2 fast-2:2")
    row = template("2x6", 1, (1, 1))
    current = placed(row, composition=nodes("fast-1:2 fast-2:2"))
    found = place(MODEL, (row,), composition, 1, current)
    assert {p.node for p in found} == {"fast-1", "fast-2"}
    swapped = template("1x3 1x3")
    before = placed(template("1x2 1x4"), composition=nodes("fast-0:2"))
    again = place(MODEL, (swapped,), nodes("fast-0:2"), 1, before)
    assert [p.gpus for p in again] == [(0,), (1,)]


def test_what_greedy_choice_would_block_is_packed_largest_first():
    rows = (template("1x3 1x3"), template("2x6"))
    found = place(MODEL, rows, nodes("fast-0:1 fast-1:3"))
    assert found is not None
    assert place(MODEL, rows, nodes("fast-0:1 fast-1:1 fast-2:2")) is not None


def test_replicas_that_are_blocked_share_nodes_and_leave_the_others_whole():
    row = template("1x2 2x4", 1, (1,) * 6)  # three GPUs each, and one of each node is left
    found = place(MODEL, (row,), nodes("fast-0:4 fast-1:4 fast-2:4 fast-3:4 fast-4:4 fast-5:1"))
    nodes_of = [{p.node for p in found if p.replica == replica} for replica in range(6)]
    assert sum(len(names) == 1 for names in nodes_of) == 4


def test_tp_groups_do_not_cross_nodes():
    assert place(MODEL, (template("2x6"),), nodes("fast-0:1 fast-1:1")) is None
    assert not can_pack({("demo-fast", 2): 1}, room("fast-0:1 fast-1:1"))
    assert can_pack({("demo-fast", 2): 1, ("demo-fast", 1): 1}, room("fast-0:3"))
    assert not can_pack({("demo-fast", 2): 2}, room("fast-0:3 fast-1:1"))


def test_holders_are_counted_by_node():
    plan = placed(template("2x6", 1, (1, 1)), composition=nodes("fast-0:4"))
    assert holders_by_layer(MODEL, plan) == 1
    spread = place(MODEL, plan.templates, nodes("fast-0:4 fast-1:2"), 2)
    assert holders_by_layer(MODEL, Plan(plan.templates, spread)) == 2
