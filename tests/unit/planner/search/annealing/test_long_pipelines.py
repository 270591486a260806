"""Pipelines over all classes keep to room and depth, and start a search that nothing else can."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.annealing.long_pipelines import long_pipelines
from planner.search.driver import search

WORKLOAD = Workload(
    model=find_model("qwen3-32b"), global_batch=2048, sequence_length=2048, precision="fp16"
)
TEXT = "a100-40=2x2+4x1,a100-80=2x2+4x1,h100=8x1,a6000=1x8"  # no type alone holds the model
COMPOSITION = Composition.from_text(TEXT)


@pytest.fixture(scope="module")
def tables():
    return pricing_of(WORKLOAD, COMPOSITION, find_profile(WORKLOAD)).tables


@pytest.mark.parametrize("deepest", [1, 6, 24, 32])
def test_no_pipeline_is_deeper_than_allowed_or_takes_more_than_there_is(tables, deepest):
    for options in long_pipelines(tables, deepest):
        assert 0 < len(options) <= deepest
        kinds = [int(tables.option_type[option]) for option in options]
        gpus = Counter[int]()
        for option, kind in zip(options, kinds, strict=True):
            gpus[kind] += int(tables.option_tp[option])
        for kind, taken in gpus.items():
            assert taken <= max(tables.room[tables.option_type == kind])
        changes = sum(before != after for before, after in itertools.pairwise(kinds))
        assert changes == len(gpus) - 1  # the stages of a class stand side by side


def test_where_depth_allows_it_every_gpu_takes_part(tables):
    most = max(sum(tables.option_tp[list(options)]) for options in long_pipelines(tables, 32))
    assert most == COMPOSITION.gpus == np.sum([node.gpus for node in COMPOSITION.nodes])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["search", "columns"])
def test_a_model_that_only_all_types_together_hold_is_planned_without_a_policy(method):
    request = PlanRequest(
        workload=WORKLOAD, composition=COMPOSITION, method=method, budget_evaluations=300
    )
    found = search(request, find_profile(WORKLOAD))
    assert len({stage.gpu_type for stage in found.plan.templates[0].stages}) > 1


def test_within_limits_the_gpus_with_most_memory_come_first():
    limits = GpuLimits(9, (("a100-80", 4),))
    asked = pricing_of(WORKLOAD, COMPOSITION, find_profile(WORKLOAD), max_gpus=limits)
    for options in long_pipelines(asked.tables, 32):
        used = Counter[str]()
        for option in options:
            used[asked.options[option][0]] += asked.options[option][1]
        assert limits.allows(used)
        assert used.total() == 9
        assert used["a100-80"] == 4
