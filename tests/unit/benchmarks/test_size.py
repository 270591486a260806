"""benchmarks/size.py: lines are counted by part, as git has them."""

from __future__ import annotations

from benchmarks import size
from benchmarks.pages import ROOT


def test_a_part_has_its_own_lines_and_benchmarks_within_tests_are_benchmarks():
    files = {
        "planner/api.py": 10,
        "heddle/commands/plan.py": 3,
        "heddle/main.py": 4,
        "tests/benchmarks/stall.py": 5,
        "tests/test_house.py": 6,
        "benchmarks/pages.py": 7,
    }
    found = size.parts(files)
    assert found == {"planner": 13, "product": 17, "benchmarks": 12, "tests": 6}


def test_growth_is_by_folder_and_a_folder_that_is_new_grew_by_all_its_lines():
    before = {"worker/rank/a.py": 5, "tests/unit/worker/rank/test_a.py": 5, "planner/api.py": 2}
    today = {**before, "worker/rank/b.py": 3, "tests/unit/worker/c/test_c.py": 9, "new/x/y.py": 4}
    assert size.growth(before, today)[:3] == [
        ("tests/unit/worker", 5, 14),
        ("new/x", 0, 4),
        ("worker/rank", 5, 8),
    ]


def test_the_share_of_the_planner_is_files_that_there_are():
    assert all((ROOT / path).is_file() for path in size.OF_THE_PLANNER)


def test_a_goal_that_is_missed_is_said_so():
    small = dict.fromkeys(size.GOALS, 10_000)
    rows = size.sizes({size.BEFORE: small, size.AFTER: small, size.TODAY: small}).splitlines()
    assert "| planner | 10,000 | 10,000 | 10,000 | 18,000 | met | met |" in rows
    assert "| benchmarks | 10,000 | 10,000 | 10,000 | 8,500 | **missed** | **missed** |" in rows
    assert rows[-1].endswith("| 30,000 | 24,000 | **missed** | **missed** |")


def test_lines_are_those_of_git():
    found = size.lines_of("HEAD")
    said = size.git("show", "HEAD:planner/errors.py")
    assert found["planner/errors.py"] == said.count(b"\n")
