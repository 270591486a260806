"""The planner sees all GPUs that a job may take, and its search has the limit."""

from __future__ import annotations

import pytest

from heddle_operator.rules.gpu_limits import gpu_limits, plan_request
from heddle_operator.state.snapshot import Headroom, Observed, ObservedPod
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits
from tests.fakes.operator import a_job

NODES = Composition.from_text("demo-fast=1x4,demo-slow=1x4")
POD = ObservedPod(name="p", node="demo-fast-0", ordinal=0, gpus=2, phase="running")


@pytest.mark.parametrize(
    ("elastic", "observed", "limits"),
    [
        ({}, Observed(), UNLIMITED),
        ({"maxGPUs": 8}, Observed(), UNLIMITED),
        ({"maxGPUs": 4}, Observed(), GpuLimits(4)),
        ({"maxGPUs": 4}, Observed(headroom=Headroom(gpus=3)), GpuLimits(3)),
        ({}, Observed(headroom=Headroom(gpus=3)), GpuLimits(3)),
        ({}, Observed(headroom=Headroom(gpus=3), pods=(POD,)), UNLIMITED),
    ],
    ids=["none", "as many as there are", "maxGPUs", "the smaller one", "quota", "quota with pods"],
)
def test_a_plan_has_the_limits_that_bind(elastic, observed, limits):
    assert gpu_limits(a_job(**elastic), observed, NODES) == limits


def test_another_limit_is_another_question():
    keys = {plan_request(a_job(maxGPUs=n), Observed(), NODES, None).key for n in (2, 4, 8)}
    assert len(keys) == 3
