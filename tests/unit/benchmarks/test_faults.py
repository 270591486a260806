"""benchmarks/faults.py: the part of the page on staging memory counts what passed, and no more."""

from __future__ import annotations

from benchmarks.faults import STAGED, staged_part
from benchmarks.pages import faults_of_header

LOG = """\
INFO campaign.py:260 stop rank 0 in vote: a step again after 4.5 s
INFO campaign.py:260 stop pod 4 in vote: a step again after 5.5 s
INFO campaign.py:260 kill rank 0 in flip: a step again after 9.9 s
INFO campaign.py:260 kill rank 0 in form: a step again after 8.8 s
"""
OUTPUT = """\
test_kills.py::test_a[stop-vote] PASSED [ 3%]
test_kills.py::test_a[kill-flip] FAILED [ 6%]
test_kills.py::test_a[kill-form]
"""


def test_cases_of_a_job_that_failed_or_did_not_end_are_not_counted():
    part = staged_part(LOG, OUTPUT, "f7798aff")
    assert part.strip().startswith(STAGED)
    assert "| vote | 4.5 | - | - | - | 5.5 |" in part
    assert "2 of 136 cases ran in 1 jobs" in part
    assert "Jobs that failed: kill in flip." in part
    assert "9.9" not in part
    assert "8.8" not in part
    assert "The longest took 5.5 s" in part
    assert faults_of_header(part) == []
