"""The costs behind the bound: every way in which a stage may run is in them."""

from __future__ import annotations

import numpy as np

from benchmarks.bound.stages import PLACES, StageCosts
from planner.cluster.composition import Composition
from planner.cost.memory import StageSlot, layers_that_fit
from planner.profiles.generator import find_profile
from tests.builders import work_on


def test_stages_that_spread_their_experts_are_among_them():
    workload = work_on("mixtral-8x7b", 64, precision="fp16", memory="paper")
    profile = find_profile(workload)
    costs = StageCosts(workload, Composition.from_text("a100-80=2x8"), profile)
    seconds = costs.seconds(1)[PLACES.index((1, 3)), 0]
    assert costs.groups[0].tp == 1
    plain = layers_that_fit(
        workload,
        profile,
        StageSlot(gpu_type="a100-80", tp=1, micro_batch=1, micro_batches=1, depth=3, index=1),
    )
    spread = layers_that_fit(
        workload,
        profile,
        StageSlot(gpu_type="a100-80", tp=1, micro_batch=1, micro_batches=1, depth=3, index=1, ep=8),
    )
    assert spread > plain
    assert np.isfinite(seconds[1 : spread + 1]).all()
