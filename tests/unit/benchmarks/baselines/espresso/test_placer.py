"""Espresso's placer: every block once, within memory, whatever the first stage takes."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.baselines.espresso.placer import Placer
from benchmarks.baselines.quantities import Quantities
from tests.baselines import question


@pytest.mark.parametrize(
    "counts", [{"h100": 2}, {"h100": 1, "a6000": 2}, {"a100-40": 2, "h100": 2}]
)
@pytest.mark.parametrize("dp", [1, 2])
def test_a_placement_holds_every_block_within_memory(counts, dp):
    placer = Placer(Quantities(question("h100=1x4,a6000=1x4,a100-40=1x4", layers=12)), 1, dp)
    found = list(placer.placements(counts))
    assert found
    depth = sum(counts.values())
    for placed in found:
        assert sum(blocks for _, blocks in placed.stages) == 12
        assert Counter(kind for kind, _ in placed.stages) == counts
        for stage, (kind, blocks) in enumerate(placed.stages):
            assert 1 <= blocks <= placer.room(kind, stage, depth)


def test_a_model_larger_than_the_memory_has_no_placement():
    placer = Placer(Quantities(question("a100-40=1x4", layers=32)), 1, 1)
    assert not placer.fits("a100-40", 1)
    assert list(placer.placements({"a100-40": 1})) == []
