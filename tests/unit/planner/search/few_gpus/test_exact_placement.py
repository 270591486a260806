"""First placements: by replica, by stage, by layer, and with slow nodes for fast ones."""

from __future__ import annotations

from planner.cluster.composition import Composition, Node
from planner.search.few_gpus.exact_placement import FirstPlacements
from tests.builders import MODEL, nodes

TP1, TP2 = ("demo-fast", 1), ("demo-fast", 2)


def homes(composition: Composition, counts) -> list:
    placed = FirstPlacements(MODEL, composition, 1).of(counts)
    return [tuple(draft.where for draft in drafts) for drafts in placed]


def test_stages_of_several_templates_share_nodes_by_their_layers():
    found = homes(nodes("fast-0:4 fast-1:4"), (((TP1, TP1), 2), ((TP2, TP2), 1)))
    assert len(set(found)) == len(found)
    assert any({node for pair in (*a, *b) for node in pair[:1]} == {0} for a, b in found)
    assert any(all(one == other for one, other in (*a, *b)) for a, b in found)


def test_no_node_gives_more_than_it_has():
    for where in homes(nodes("fast-0:3 fast-1:2"), (((TP1,), 1), ((TP2, TP2), 1))):
        (single,), (pair,) = where
        taken = [single[0], *pair, *pair]
        assert taken.count(0) <= 3
        assert taken.count(1) <= 2


def test_slow_nodes_stand_in_for_fast_ones():
    fast, slow = Node("a", "demo-fast", 2), Node("b", "demo-fast", 2, speed_factor=0.5)
    found = homes(Composition((fast, slow)), (((TP2,), 1),))
    assert sorted(found) == [(((0,),),), (((1,),),)]
    assert homes(nodes("fast-0:2 fast-1:2"), (((TP2,), 1),)) == [(((0,),),)]


def test_what_does_not_fit_has_no_placement():
    assert homes(nodes("fast-0:1 fast-1:1"), (((TP2,), 1),)) == []
