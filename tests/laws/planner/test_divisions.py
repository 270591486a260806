"""Divisions of a few GPUs come near the best one, which the judge of the benchmark lists.

Two of the cases in which types are too small alone; `python -m benchmarks.arbitration` has 200.
"""

from __future__ import annotations

import pytest

from benchmarks.arbitration.__main__ import reached
from benchmarks.arbitration.cases import a_case
from benchmarks.arbitration.judge import Judge

NEAR = 0.95  # of the judge's best; the worst of 200 cases may have so much


@pytest.mark.slow
@pytest.mark.parametrize("seed", [73, 152])
def test_a_division_is_near_the_best_one(seed):
    case, judge = a_case(seed), Judge(1000)
    assert judge.value(case, reached(case)) >= NEAR * judge.best(case)
