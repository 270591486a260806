"""Cores of the machine, or fewer where a control group allows fewer."""

from __future__ import annotations

import os

import pytest

from planner.cores import usable_cores

ALL = len(os.sched_getaffinity(0))


def test_without_a_limit_all_cores_count(tmp_path):
    assert usable_cores(tmp_path) == ALL


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max", ALL), ("100000", 1), ("50000", 1), ("6400000", ALL), ("199999", 1)],
)
def test_a_quota_of_today_counts_in_whole_cores(tmp_path, quota, cores):
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", ALL), ("100000", 1), ("6400000", ALL)])
def test_a_quota_of_before_counts_as_well(tmp_path, quota, cores):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores
