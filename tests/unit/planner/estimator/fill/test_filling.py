"""The rows of stages say what fits, and how much of it, whatever the memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.fill.filling import stage_rows
from planner.estimator.fill.stage import slot_of
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile

SHARES = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05, 0.01)  # of the memory of a GPU


@pytest.fixture(scope="module", params=["deepseek-v3-like", "qwen3-30b-a3b"])
def tables(request):
    workload = Workload(model=find_model(request.param), global_batch=512, sequence_length=4096)
    composition = Composition.from_text("h100=8x4,a100-80=8x4")
    pricing = pricing_of(workload, composition, find_profile(workload))
    assert pricing is not None
    return pricing.tables


def held_by(row: np.ndarray) -> int:
    """The most blocks of both kinds with seconds that are not infinite."""
    return max(
        (int(a) + int(b) for a, b in zip(*np.nonzero(row < math.inf), strict=True)), default=0
    )


@pytest.mark.parametrize("share", SHARES)
def test_the_blocks_held_are_those_with_seconds(tables, share):
    t = tables._replace(
        usable_bytes=tables.usable_bytes * share, caps=np.full_like(tables.caps, -2)
    )
    work = new_workspace(t)
    last = len(t.option_tp) - 1
    for depth in (1, 2, 3):
        for s in range(depth):
            held = stage_rows(t, slot_of(last, 0, s, depth, 64, 8), s, 0.0, work.rows[s])
            assert held == held_by(work.rows[s])
