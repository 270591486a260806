"""Planners have a share of the memory that the operator's container may hold."""

from __future__ import annotations

import pytest

from heddle_operator.controller.planner_memory import USUAL_BYTES, planner_memory_bytes


@pytest.mark.parametrize(
    ("limit", "num_bytes"),
    [
        ("8589934592\n", 4 << 30),
        ("536870912\n", 1 << 28),
        ("max\n", USUAL_BYTES),
        ("", USUAL_BYTES),
        (None, USUAL_BYTES),
    ],
)
def test_half_of_the_limit_is_the_planners(tmp_path, limit, num_bytes):
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert planner_memory_bytes(tmp_path) == num_bytes
