"""Sets of templates: what a search starts from, and what is one step away."""

from __future__ import annotations

from planner.cluster.gpu_limits import GpuLimits
from planner.placement.place import room_of
from planner.search.few_gpus.templates import adjacent, every_change, merged, packs, starts
from planner.search.fill import options
from tests.builders import MODEL, demo_profile, nodes

TP1, TP2 = ("demo-fast", 1), ("demo-fast", 2)


def test_options_are_profiled_divide_the_model_and_fit_on_a_node():
    found = options(nodes("fast-0:3 slow-0:1"), MODEL, demo_profile())
    assert found == (TP1, TP2, ("demo-slow", 1))


def test_starts_are_shallow_first_and_pack():
    room = room_of(nodes("fast-0:4"))
    found = list(starts((TP1, TP2), 6, room))
    assert found[:2] == [(((TP1,), 1),), (((TP1,), 2),)]
    assert (((TP1,) * 4, 1),) in found
    assert (((TP2,), 3),) not in found
    assert all(packs(counts, room) for counts in found)


def test_a_set_of_templates_has_one_form():
    assert merged([((TP2,), 1), ((TP1,), 2), ((TP2,), 1), ((TP1, TP2), 0)]) == (
        ((TP1,), 2),
        ((TP2,), 2),
    )


def test_changes_reach_every_depth_and_respect_the_deepest():
    depths = {len(s) for s in every_change((TP1, TP2), (TP1, TP2), 3)}
    assert depths == {1, 2, 3}
    assert {len(s) for s in every_change((TP1, TP2), (TP1, TP2), 2)} == {1, 2}
    assert (TP2, TP1) in every_change((TP1, TP2), (TP1, TP2), 2)


def test_sets_one_step_away_pack_and_come_once():
    room = room_of(nodes("fast-0:4"))
    counts = (((TP1, TP1), 1), ((TP2,), 1))
    found = list(adjacent(counts, (TP1, TP2), [(TP2,)], 3, room))
    assert len(set(found)) == len(found)
    assert counts not in found
    assert all(packs(one, room) for one in found)
    assert (((TP1, TP1), 1),) in found  # a replica less
    assert (((TP2,), 2),) in found  # another template in its room
    assert (((TP1, TP1), 2), ((TP2,), 1)) not in found  # no room


def test_sets_of_templates_keep_to_limits():
    there, slow = nodes("fast-0:4 slow-0:4"), ("demo-slow", 1)
    room, limits = room_of(there), GpuLimits(3, (("demo-fast", 2),))
    assert packs((((TP1, slow), 1), ((TP1,), 1)), room, limits)
    assert not packs((((TP1, slow), 2),), room, limits)
    assert not packs((((TP1,), 3),), room, limits)
    choices = (TP1, TP2, slow)
    found = [*starts(choices, 4, room, limits)]
    found += adjacent((((TP2, slow), 1),), choices, [(TP1,), (slow,)], 4, room, limits)
    assert all(packs(counts, room, limits) for counts in found)
    assert (((slow,), 3),) in found
