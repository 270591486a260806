"""A few GPUs are divided as well as the best of all divisions; who comes first has a plan first."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.rules.arbitration.claim import Claim
from heddle_operator.rules.arbitration.few_gpus import choices, divide_few
from heddle_operator.state.worth import Worth

CURVE = st.lists(st.integers(1, 9), min_size=0, max_size=2).map(
    lambda rates: tuple((i + 1 + len(rates) % 2, float(r)) for i, r in enumerate(sorted(rates)))
)


def claim(curves, *, rank=0, least=1, most=4, mixed=(), name="j"):
    rows = tuple((t, tuple(curve)) for t, curve in sorted(curves.items()))
    return Claim(
        job=name,
        rank=rank,
        least=least,
        further=most,
        most=most,
        worth=Worth(rows, mixed),
        held={},
        rooms=dict.fromkeys(("a", "b"), 4),
    )


@st.composite
def claims(draw):
    rows = []
    for rank in sorted(draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))):
        least = draw(st.integers(1, 2))
        mixed = (((1, 1), 4.0),) if draw(st.booleans()) else ()
        curves = {"a": draw(CURVE), "b": draw(CURVE)}
        most = draw(st.integers(least, 4))
        rows.append(claim(curves, rank=rank, least=least, most=most, mixed=mixed))
    return rows


def score(rows, division):
    """Who has a plan, then the sum of each rank."""
    shares = [
        row.with_dealt(dict(zip("ab", part, strict=True)))
        for row, part in zip(rows, division, strict=True)
    ]
    sums = [sum(s for row, s in zip(rows, shares, strict=True) if row.rank == r) for r in (0, 1)]
    return [share > 0 for share in shares], sums


@given(claims(), st.integers(0, 3), st.integers(0, 3))
def test_no_division_is_better(rows, a, b):
    divide_few(rows, {"a": a, "b": b})
    found = [(row.dealt.get("a", 0), row.dealt.get("b", 0)) for row in rows]
    assert all(
        sum(column) <= free for column, free in zip(zip(*found, strict=True), (a, b), strict=True)
    )
    parts = list(itertools.product(range(a + 1), range(b + 1)))
    plans, sums = score(rows, found)
    for division in itertools.product(parts, repeat=len(rows)):
        fits = all(
            not sum(part) or row.least <= sum(part) <= row.further
            for row, part in zip(rows, division, strict=True)
        )
        if fits and sum(p[0] for p in division) <= a and sum(p[1] for p in division) <= b:
            other_plans, other_sums = score(rows, division)
            assert plans >= other_plans
            if plans == other_plans:
                # Equal shares are worth a thousandth.
                assert sums[0] >= other_sums[0] * 0.99
                assert sums[0] > other_sums[0] or sums[1] >= other_sums[1] * 0.99


def test_of_equal_sums_the_shares_are_equal():
    steady = {"a": ((1, 1.0), (4, 4.0)), "b": ()}
    rows = [claim(steady), claim(steady)]
    divide_few(rows, {"a": 4, "b": 0})
    assert [row.dealt for row in rows] == [{"a": 2}, {"a": 2}]


def test_a_plan_of_who_comes_first_comes_before_more_plans():
    needs_two = {"a": ((2, 4.0),), "b": ()}
    rows = [
        claim(needs_two),
        claim({"a": ((1, 1.0),), "b": ()}),
        claim({"a": ((1, 1.0),), "b": ()}),
    ]
    divide_few(rows, {"a": 2, "b": 0})
    assert [row.dealt for row in rows] == [{"a": 2}, {}, {}]


def test_a_job_that_seems_to_have_no_plan_gets_its_floor_where_that_costs_nobody_anything():
    rows = [claim({"a": (), "b": ()}, least=2), claim({"a": ((1, 1.0), (2, 2.0)), "b": ()})]
    divide_few(rows, {"a": 2, "b": 2})
    assert [row.dealt for row in rows] == [{"b": 2}, {"a": 2}]
    divide_few(rows, {"a": 2, "b": 0})
    assert [row.dealt for row in rows] == [{}, {"a": 2}]


@pytest.mark.parametrize(("free", "expected"), [((4, 3, 3), 3 * 15 * 10 * 10), ((16,), 3 * 153)])
def test_the_choices_are_those_of_each_job_for_each_number_of_gpus_left(free, expected):
    assert choices(3, dict(zip("abc", free, strict=False))) == expected
