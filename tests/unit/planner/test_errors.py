"""The planner's branch of the error tree."""

from __future__ import annotations

import pytest

from planner import errors
from planner.policy.weights import find_policy


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
def test_every_planning_error_is_a_heddle_error(name):
    error = getattr(errors, name)
    assert issubclass(error, errors.PlanningError)
    assert issubclass(error, errors.HeddleError)
    assert (error("x").field, error("x").code) == (None, "")


def test_a_front_end_calls_the_field_by_its_own_name():
    error = errors.InvalidRequest("{field} is 0", field="max_gpus", code="OutOfRange")
    assert str(error) == "max_gpus is 0"
    assert error.named({"max_gpus": "--max-gpus"}) == "--max-gpus is 0"
    assert error.named({"seed": "--seed"}) == "max_gpus is 0"
    assert error.code == "OutOfRange"


def test_a_front_end_changes_no_other_word_than_the_field():
    with pytest.raises(errors.NoPolicy) as caught:
        find_policy("no-such-model", None)
    assert "`heddle train-policy`" in caught.value.named({"policy": "--policy"})
    assert caught.value.named({"policy": "--policy"}).endswith(
        "its folder as --policy, or use the method search or columns"
    )


def test_what_was_found_is_said_with_or_without_what_to_do():
    said = {"field": "policy", "code": "Damaged", "remedy": "name another {field}"}
    error = errors.InvalidPolicy("{field} holds 1; 2", **said)
    assert error.finding == "policy holds 1; 2"
    assert str(error) == "policy holds 1; 2; name another policy"
    assert error.named({"policy": "--policy"}) == "--policy holds 1; 2; name another --policy"
