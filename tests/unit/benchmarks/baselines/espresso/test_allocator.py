"""Espresso's tree against all of its leaves."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.baselines.espresso import plan
from benchmarks.baselines.espresso.placer import Placer
from benchmarks.baselines.interface import Budget
from benchmarks.baselines.quantities import Quantities
from tests.baselines import question

pytestmark = pytest.mark.slow  # compiles its schedule


@pytest.mark.parametrize(
    ("text", "layers"), [("h100=1x4", 8), ("h100=1x2,a100-40=1x4", 12), ("a6000=1x4,h100=1x4", 16)]
)
def test_no_pruned_leaf_is_better(text, layers):
    asked = question(text, layers=layers, batch=16)
    numbers = Quantities(asked)
    types = asked.composition.gpu_types
    stock = {k: sum(n.gpus for n in asked.composition.nodes if n.gpu_type == k) for k in types}
    best = []
    for size, dp in product(numbers.micro_batches, (1, 2, 4, 8)):
        if 16 % (size * dp):
            continue
        placer = Placer(numbers, size, dp)
        allowed = [kind for kind in types if stock[kind] >= dp]
        least = [
            next((pp for pp in range(1, layers + 1) if placer.fits(kind, pp)), 0)
            for kind in allowed
        ]
        depths = [pp for pp in least if pp]
        for counts in product(*(range(stock[kind] // dp + 1) for kind in allowed)):
            pp = sum(counts)
            if depths and min(depths) <= pp < max(max(depths), min(depths) + 1):
                chosen = {k: n for k, n in zip(allowed, counts, strict=True) if n}
                best += [placer.seconds(placed) for placed in placer.placements(chosen)]
    assert plan(asked, Budget()).plans[0].own_s == pytest.approx(min(best))


def test_every_stage_has_tp_1_and_every_stage_as_many_replicas():
    for ranked in plan(question("h100=1x4,a100-40=2x2", layers=12, batch=16), Budget()).plans:
        (grid,) = ranked.laid_out().grids
        assert {group.tp for stage in grid.stages for group in stage.groups} == {1}
        assert len({len(stage.groups) for stage in grid.stages}) == 1
