"""Where types with slow NICs may stand, by how much of the speed is theirs."""

from __future__ import annotations

import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.column_generation.mixtures import speeds_of
from planner.search.column_generation.zones import MINORITY, ZONES, end_zones

SECONDS = 10.0  # of an iteration


def pricing(text: str):
    workload = Workload(find_model("llama3-8b"), 2048, 2048)
    found = pricing_of(workload, Composition.from_text(text), find_profile(workload))
    assert found is not None
    return found


def zones_and_share(text: str):
    """(end zones of slow a6000 among fast h100, the share of the speed that a6000 have, layers)."""
    found = pricing(text)
    t = found.tables
    kinds = [one.gpu_type for one in found.classes]
    slow, fast = (float(t.nic[kinds.index(kind), 1]) for kind in ("a6000", "h100"))
    assert slow > fast
    speeds = speeds_of(t)[1]
    share = speeds[kinds.index("a6000")] / speeds.sum()
    return end_zones(t, slow, fast, SECONDS), share, t.layers


def test_a_class_has_the_speed_of_all_its_gpus():
    found = pricing("h100=6x4,a6000=8x2")
    one, together = speeds_of(found.tables)
    kinds = [kind.gpu_type for kind in found.classes]
    assert together[kinds.index("h100")] == pytest.approx(24 * one[kinds.index("h100")])
    assert together[kinds.index("a6000")] == pytest.approx(16 * one[kinds.index("a6000")])
    assert one[kinds.index("h100")] > one[kinds.index("a6000")]


def test_zones_are_about_as_large_as_the_share_of_slow_nics_in_the_speed():
    zones, share, layers = zones_and_share("h100=6x4,a6000=16x2")
    assert 0.1 < share < MINORITY
    sizes = {zone.front + zone.back for zone in zones}
    assert sizes == {
        blocks
        for factor in ZONES
        for blocks in [max(1, round(factor * share * layers))]
        if blocks <= layers // 2
    }
    assert {zone.front for zone in zones} >= {0, max(sizes)}  # at the back, and at the front


def test_a_zone_has_a_block_at_least():
    zones, share, layers = zones_and_share("h100=40x4,a6000=1x1")
    assert share * layers * max(ZONES) < 0.5
    assert {zone.front + zone.back for zone in zones} == {1}


def test_slow_nics_that_most_of_the_speed_has_are_not_kept_to_zones():
    zones, share, _ = zones_and_share("h100=2x4,a6000=40x2")
    assert share > MINORITY
    assert zones == []
