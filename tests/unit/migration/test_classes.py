"""Classes: regions with equal holders and equal receivers, and nothing that need not move."""

from __future__ import annotations

import numpy as np

from migration.classes import bytes_missing, moving_classes
from migration.errors import StateLost
from migration.layout import StateLayout
from planner.plans.regions import Cuts, regions_of
from planner.plans.state_rule import PARTS
from tests.laws.migration.changes import MODEL
from tests.refusals import refused

REGIONS = regions_of(MODEL, Cuts(frozenset({1})))


def layout(*rows):
    """One row a member: the regions that it has."""
    mask = np.zeros((len(rows), len(REGIONS)), dtype=bool)
    for member, regions in enumerate(rows):
        mask[member, list(regions)] = True
    return StateLayout(REGIONS, {PARTS: mask})


def test_regions_alike_are_one_class():
    held, needed = layout({0, 1, 2, 3}, {3}, ()), layout((), (), {0, 1, 2, 3})
    first, second = moving_classes(held, needed)
    assert (first.regions, first.holders, first.receivers) == ((0, 1, 2), (0,), (2,))
    assert (second.regions, second.holders, second.receivers) == ((3,), (0, 1), (2,))
    assert first.num_bytes == 12 * int(REGIONS.numel[:3].sum())


def test_what_a_member_holds_does_not_move_to_it():
    assert moving_classes(layout({0}, {1}), layout({0}, {1})) == ()
    assert bytes_missing(layout({0}, {1}), layout({0, 1}, ())) == (12 * int(REGIONS.numel[1]), 0)


def test_lost_state_names_tensor_and_rows():
    with refused(StateLost, "NoHolder", "min_holders"):
        moving_classes(layout({1}, ()), layout((), {0, 1}))


def test_what_nobody_needs_may_be_lost():
    assert moving_classes(layout({1}), layout({1})) == ()
