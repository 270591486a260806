"""Limits on GPUs: read from an option and from JSON, asked by type and in all."""

from __future__ import annotations

import sys

import pytest

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.errors import InvalidRequest
from tests.refusals import refused

THERE = Composition.from_text("a100-40=2x4,h100=1x8")


def test_equal_limits_are_equal_whatever_their_order():
    one = GpuLimits(8, (("h100", 4), ("a100-40", 2)))
    assert one == GpuLimits(8, (("a100-40", 2), ("h100", 4)))
    assert one.by_type[0] == ("a100-40", 2)


def test_counts_are_allowed_up_to_each_limit_and_to_all_of_them():
    limits = GpuLimits(8, (("h100", 4),))
    assert limits.allows({"h100": 4, "a100-40": 4})
    assert limits.allows({})
    assert not limits.allows({"h100": 5})
    assert not limits.allows({"h100": 4, "a100-40": 5})
    assert GpuLimits().allows({"h100": 10_000})


def test_the_most_of_a_type_is_that_of_its_limit_or_of_all_types():
    limits = GpuLimits(8, (("h100", 4), ("b200", 16)))
    assert [limits.most(name) for name in ("h100", "b200", "a100-40")] == [4, 8, 8]
    assert GpuLimits().most("h100") == sys.maxsize


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        (GpuLimits(), 16),
        (GpuLimits(16), 16),
        (GpuLimits(15), 15),
        (GpuLimits(None, (("h100", 8),)), 16),
        (GpuLimits(None, (("h100", 3),)), 11),
        (GpuLimits(10, (("h100", 3),)), 10),
        (GpuLimits(None, (("h100", 0), ("b200", 1))), 8),
        (GpuLimits(0), 0),
    ],
)
def test_a_limit_binds_where_not_all_gpus_may_be_used(limits: GpuLimits, allowed: int):
    assert limits.allowed(THERE) == allowed
    assert limits.binds(THERE) == (allowed < 16)


def test_limits_are_read_from_one_option_or_several():
    assert GpuLimits.from_text(["8"]) == GpuLimits(8)
    assert GpuLimits.from_text(["h100=8"]) == GpuLimits(None, (("h100", 8),))
    assert GpuLimits.from_text(["8, h100=4"]) == GpuLimits.from_text(["h100=4", "8"])
    assert GpuLimits.from_text(["h100=0"]).most("h100") == 0
    assert not GpuLimits.from_text([])


@pytest.mark.parametrize(
    "text", ["0", "h100=", "=8", "", "8,", "-1", "1.5", "h100", "h100=4,h100=4", "8,9", "1e9"]
)
def test_what_is_no_limit_is_refused_in_one_sentence(text: str):
    with pytest.raises(InvalidRequest) as caught:
        GpuLimits.from_text([text])
    assert (caught.value.field, bool(caught.value.code)) == ("max_gpus", True)


@pytest.mark.parametrize("limits", [GpuLimits(), GpuLimits(8), GpuLimits(9, (("h100", 0),))])
def test_json_reads_back_to_equal_limits(limits: GpuLimits):
    assert GpuLimits.from_json(limits.to_json()) == limits


@pytest.mark.parametrize(
    "row",
    [
        8,
        {"most": 8},
        {"total": "8"},
        {"total": True},
        {"total": -1},
        {"by_type": [1]},
        {"by_type": {"h100": 1.5}},
        {"by_type": {"h100": -1}},
    ],
)
def test_json_that_is_no_limit_is_refused(row: object):
    with pytest.raises(InvalidRequest) as caught:
        GpuLimits.from_json(row)
    assert (caught.value.field, bool(caught.value.code)) == ("max_gpus", True)


def test_a_type_has_one_limit():
    with refused(InvalidRequest, "GivenTwice", "max_gpus"):
        GpuLimits(None, (("h100", 4), ("h100", 5)))


def test_limits_in_words():
    assert str(GpuLimits(1, (("h100", 4),))) == "1 GPU and 4 h100"
