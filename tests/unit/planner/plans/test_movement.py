"""Bytes to move: only what a GPU did not hold before."""

from __future__ import annotations

from planner.plans.movement import bytes_to_move, held_numel, missing_bytes
from planner.plans.ranks import RankMap
from tests.builders import MODEL, on_one_node, template


def test_nothing_moves_when_nothing_changes():
    plan = on_one_node(template("2x4 1x2"))
    assert bytes_to_move(MODEL, plan, plan) == 0


def test_a_new_gpu_needs_all_that_it_will_hold():
    before = on_one_node(template("1x6"))
    after = on_one_node(template("1x6", 1, (1, 1)))
    joiner = RankMap.of(after).seats[1]
    assert missing_bytes(MODEL, before, after) == {
        ("fast-0", 0): 0,
        ("fast-0", 1): 12 * held_numel(MODEL, joiner),
    }


def test_a_narrower_tp_slice_is_kept_and_a_wider_one_grows():
    wide, narrow = on_one_node(template("1x6")), on_one_node(template("2x6"))
    assert missing_bytes(MODEL, wide, narrow)["fast-0", 0] == 0
    grown = missing_bytes(MODEL, narrow, wide)["fast-0", 0]
    whole = 12 * held_numel(MODEL, RankMap.of(wide).seats[0])
    half = 12 * held_numel(MODEL, RankMap.of(narrow).seats[0])
    assert grown == whole - half
