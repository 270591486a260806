"""What commands read: limits on GPUs, of types that are there."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from heddle.cli.inputs import read_max_gpus
from heddle.commands.plan import plan
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.errors import InvalidRequest
from tests.refusals import refused

THERE = Composition.from_text("demo-fast=2x2,demo-slow=1x4")


def test_limits_on_gpus_are_of_types_that_are_there():
    assert read_max_gpus(("6", "demo-fast=0"), THERE) == GpuLimits(6, (("demo-fast", 0),))
    assert read_max_gpus((), THERE) == GpuLimits()
    with refused(InvalidRequest, "Unknown", "max_gpus") as caught:
        read_max_gpus(("fast=2",), THERE)
    assert "the GPU types are demo-fast, demo-slow" in str(caught.value)


@pytest.mark.parametrize("limit", ["0", "demo-fast=", "h100=8", "-3", "1.5", "", "2,3"])
def test_what_is_no_limit_ends_with_one_sentence_and_2(limit):
    line = f"--composition demo-fast=2x2 --max-gpus '{limit}'"
    result = CliRunner().invoke(plan, shlex.split(line))
    assert isinstance(result.exception, InvalidRequest)
    assert "\n" not in str(result.exception)


def test_the_answer_names_the_limit_and_keeps_to_it():
    line = "--composition demo-fast=2x2,demo-slow=1x4 --max-gpus 3 --max-gpus demo-fast=2"
    line += " --budget-evaluations 200 --output json"
    result = CliRunner().invoke(plan, shlex.split(line), catch_exceptions=False)
    data = json.loads(result.output)
    assert data["max_gpus"] == {"total": 3, "by_type": {"demo-fast": 2}}
    assert data["gpus_used"] <= 3
