"""Requests without an answer: the term that binds is named, with the amount."""

from __future__ import annotations

import pytest

from planner.composition import Composition, Node
from planner.errors import Infeasible
from planner.request import PlanRequest
from planner.search import search
from tests.builders import demo_profile, nodes, workload


def reason(composition: Composition, **wishes) -> str:
    with pytest.raises(Infeasible) as caught:
        search(PlanRequest(workload(), composition, **wishes), demo_profile())
    return str(caught.value)


def test_memory_binds_and_the_message_says_by_how_much():
    sentence = reason(nodes("fast-0:1"))
    assert "memory binds: with 1 stage(s) of TP 1 on demo-fast" in sentence
    assert "(430,688 short)" in sentence


def test_a_limit_on_depth_can_be_what_binds():
    assert "D_max 1" in reason(nodes("fast-0:1 fast-1:1"), d_max=1)


def test_no_gpu_and_no_profiled_gpu_are_told_apart():
    assert "has no GPU" in reason(Composition(()))
    assert "GPU types h999 has a profile" in reason(Composition((Node("a", "h999", 8),)))
