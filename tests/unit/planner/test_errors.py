"""The planner's branch of the error tree."""

from __future__ import annotations

import pytest

from planner import errors


@pytest.mark.parametrize(
    "name",
    [
        "InvalidComposition",
        "InvalidWorkload",
        "InvalidPlan",
        "UnprofiledConfiguration",
        "Infeasible",
    ],
)
def test_every_planning_error_is_a_heddle_error_that_retrying_does_not_cure(name):
    error = getattr(errors, name)
    assert issubclass(error, errors.PlanningError)
    assert issubclass(error, errors.HeddleError)
    assert not error("x").retryable
