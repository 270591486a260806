"""The budgets protect the live pods of a job, or yield one of them at a time."""

from __future__ import annotations

import itertools

import pytest

from heddle_operator.resources.disruption_budget import (
    budget_body,
    budget_name,
    least_available,
    mark_of,
)
from heddle_operator.rules.drain import Drain
from tests.unit.heddle_operator.resources.jobs import a_job

ONE = "one-at-a-time"


def test_the_budget_counts_in_whole_pods_and_leaves_evictable_ones_out():
    spec = budget_body(a_job(), 3)["spec"]
    assert spec["minAvailable"] == 3
    assert spec["selector"]["matchLabels"]["heddle.dev/job"] == "tiny"
    assert spec["selector"]["matchExpressions"][0]["operator"] == "DoesNotExist"


def test_a_pod_that_is_not_ready_holds_no_drain_up():
    for covers in (None, ONE):
        spec = budget_body(a_job(), 3, covers)["spec"]
        assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_budget_that_yields_covers_those_marked_for_it():
    body = budget_body(a_job(), 1, ONE)
    assert body["metadata"]["name"] == budget_name(a_job(), ONE) == "tiny-yield"
    marked = body["spec"]["selector"]["matchExpressions"][0]
    assert marked == {"key": "heddle.dev/evictable", "operator": "In", "values": [ONE]}


@pytest.mark.parametrize(
    ("marks", "drain", "least"),
    [
        ("", Drain(), (0, 0)),
        ("p p p", Drain(), (3, 0)),
        ("p p f", Drain(frozenset("c")), (2, 0)),
        ("p p p", Drain(yielded=frozenset("ab")), (3, 1)),
        ("o o p", Drain(yielded=frozenset("ab")), (1, 1)),
        ("o p p", Drain(yielded=frozenset("b")), (3, 1)),
        ("o o p", Drain(), (3, 2)),
        ("- o p", Drain(yielded=frozenset("ab")), (1, 1)),
    ],
    ids=[
        "no pod",
        "protected",
        "one drained",
        "to be yielded",
        "yielded",
        "another to be yielded",
        "protected again",
        "one evicted unseen",
    ],
)
def test_what_the_budgets_keep(marks, drain, least):
    by_letter = {"p": None, "f": "true", "o": ONE}
    held = {n: by_letter[m] for n, m in zip("abc", marks.split(), strict=False) if m in by_letter}
    assert least_available(held, drain) == least


CHOICES = [None, "true", ONE]


@pytest.mark.parametrize("before", list(itertools.product(CHOICES, repeat=3)))
def test_nothing_more_may_be_evicted_while_pods_change_their_budget(before):
    """Whatever of the marks is written already, a budget allows no more than it is to."""
    for after in itertools.product(CHOICES, repeat=3):
        names = {
            mark: frozenset(n for n, m in zip("abc", after, strict=True) if m == mark)
            for mark in CHOICES
        }
        drain = Drain(names["true"], yielded=names[ONE])
        protected, yielding = least_available(dict(zip("abc", before, strict=True)), drain)
        assert tuple(mark_of(name, drain) for name in "abc") == after
        for now in itertools.product(*zip(before, after, strict=True)):
            assert now.count(None) <= protected
            assert now.count(ONE) - yielding <= (1 if names[ONE] else 0)
