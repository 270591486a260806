"""Floors come first, by priority, in whole pods; the rest goes by priority and worth."""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.rules.arbitration.arbitrate import arbitrate
from tests.fakes.operator import a_demand

NODES = (("a", 2), ("b", 2), ("c", 2))
HIGH = a_demand("high", NODES, 6, priority=100, least=2)
LOW = a_demand("low", NODES, 6, least=2, pods=NODES)


def totals(*demands):
    return {job: sum(row.values()) for job, row in arbitrate(demands).items()}


def test_one_job_may_plan_with_all():
    assert arbitrate([replace(LOW, pods=())]) == {"low": {"a": 2, "b": 2, "c": 2}}


def test_a_job_whose_state_is_to_be_on_more_nodes_sees_gpus_of_others():
    """It may use two GPUs, and its plan takes one of each node."""
    job = replace(LOW, pods=(), least=1, most=2, min_holders=2)
    assert arbitrate([job]) == {"low": {"a": 1, "b": 1}}
    assert arbitrate([replace(job, pods=(("b", 2),))]) == {"low": {"b": 2, "a": 2}}
    assert arbitrate([replace(job, pods=(("b", 1), ("c", 1)))]) == {"low": {"b": 1, "c": 1}}
    assert arbitrate([replace(job, nodes=NODES[:1])]) == {"low": {"a": 2}}
    assert arbitrate([replace(job, further=0, pods=(("b", 2),))]) == {"low": {"b": 2}}
    other = replace(job, job="other", since="2", min_holders=1, most=4)
    assert arbitrate([job, other]) == {"low": {"a": 1, "c": 1}, "other": {"b": 2, "c": 1, "a": 1}}


def test_equal_jobs_that_fill_all_nodes_are_each_on_as_many_as_their_state_is_to_be_on():
    nodes = (("a", 4), ("b", 4))
    one = replace(LOW, nodes=nodes, pods=(), least=1, most=8, min_holders=2)
    found = arbitrate([one, replace(one, job="other", since="2")])
    assert found == {"low": {"a": 3, "b": 1}, "other": {"b": 3, "a": 1}}


def test_a_floor_is_filled_from_whole_pods_of_lower_priority():
    found = arbitrate([LOW, HIGH])
    assert totals(LOW, HIGH) == {"high": 2, "low": 4}
    assert all(not gpus or not found["high"].get(node) for node, gpus in found["low"].items())


def test_nothing_is_taken_beyond_a_floor_or_from_equals():
    assert totals(LOW, replace(HIGH, least=1)) == {"high": 2, "low": 4}
    assert totals(LOW, replace(HIGH, priority=0)) == {"high": 0, "low": 6}


def test_nothing_is_taken_below_a_floor_or_in_vain():
    assert totals(replace(LOW, least=5), HIGH) == {"high": 0, "low": 6}
    assert totals(LOW, replace(HIGH, least=5)) == {"high": 0, "low": 6}


def test_a_floor_that_a_quota_forbids_is_reserved_nothing_and_moves_nobody():
    forbidden = replace(HIGH, most=1)
    assert totals(LOW, forbidden) == {"high": 0, "low": 6}
    old, new = replace(forbidden, job="old", priority=0), replace(LOW, since="2", pods=NODES[:1])
    assert totals(old, new) == {"old": 0, "low": 6}


def test_free_gpus_come_before_those_of_others():
    found = arbitrate([replace(LOW, pods=NODES[:2]), HIGH])
    assert found["high"] == {"c": 2}
    assert sum(found["low"].values()) == 4


def test_of_the_lowest_priority_and_there_of_whom_it_costs_least():
    lenders = [
        a_demand("x", NODES, 6, pods=(("a", 1), ("a", 1))),
        a_demand("y", NODES, 6, weight=0.5, pods=(("b", 1), ("b", 1))),
        a_demand("z", NODES, 6, priority=50, weight=0.25, pods=(("c", 1), ("c", 1))),
    ]
    assert totals(*lenders, replace(HIGH, least=1)) == {"high": 1, "z": 2, "x": 2, "y": 1}


def test_the_rest_goes_by_priority_then_by_worth():
    third = {"least": 1, "pods": ()}
    steep, flat = replace(LOW, job="s", **third), replace(LOW, job="f", weight=0.5, **third)
    assert totals(steep, flat) == {"f": 2, "s": 4}
    assert totals(steep, replace(flat, priority=1, most=5)) == {"f": 5, "s": 1}


def test_what_a_job_only_recommends_goes_to_it_last():
    third = {"least": 1, "pods": ()}
    says, takes = replace(HIGH, firm=2, **third), replace(LOW, **third)
    assert totals(says, takes) == {"high": 2, "low": 4}
    assert totals(says, replace(takes, most=3)) == {"high": 3, "low": 3}


def test_who_cannot_reach_the_floor_sees_what_is_free_and_reserves_none():
    poor = replace(HIGH, least=9)
    found = arbitrate([poor, replace(LOW, pods=NODES[:1], most=4)])
    assert sum(found["low"].values()) == 4
    assert sum(found["high"].values()) == 2
