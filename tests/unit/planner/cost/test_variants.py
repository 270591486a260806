"""The variants of a stage."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.variants import variants_of
from tests.builders import demo_profile, nodes, workload


def ways(recompute: str) -> list[str]:
    asked = replace(workload(), recompute=recompute)
    found = variants_of(asked, nodes("fast-0:2"), demo_profile(), ("demo-fast", 1), True)
    return [variant.recompute for variant in found]


def test_auto_tries_what_a_stage_can_do_and_names_nothing_else():
    assert ways("auto") == ["none", "selective", "full"]


def test_what_is_asked_for_is_the_only_way():
    assert ways("full") == ["full"]
