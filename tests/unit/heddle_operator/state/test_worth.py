"""GPUs are worth the best choice among them, alone or in one mix; more are never worth less."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.state.worth import Worth

TYPES = ("big", "mid", "small")
# One GPU of a type is too small alone; the mixes say what it brings beside others.
BIG = ((2, 4.0), (3, 6.0), (4, 8.0))
WORTH = Worth((("big", BIG), ("small", ())), (((1, 2), 3.0), ((2, 2), 5.0)))


@st.composite
def worths(draw):
    """Of two or three types, with rising curves and a few mixes."""
    types = TYPES[: draw(st.integers(2, 3))]
    curves = []
    for name in types:
        points = sorted(draw(st.sets(st.integers(1, 6), max_size=3)))
        rates = sorted(draw(st.lists(st.integers(1, 40), min_size=3, max_size=3)))
        curves.append((name, tuple(zip(points, map(float, rates), strict=False))))
    row = st.tuples(*(st.integers(0, 4) for _ in types)).filter(lambda mix: sum(map(bool, mix)) > 1)
    mixes = draw(st.lists(st.tuples(row, st.floats(1.0, 60.0)), max_size=4))
    return Worth(tuple(curves), tuple(mixes), draw(st.booleans()))


def counts_of(worth, gpus):
    return {name: n for (name, _), n in zip(worth.curves, gpus, strict=False)}


def listed(worth, gpus, most):
    """The best of every choice, by listing them; of each, one mix at most."""
    types = [name for name, _ in worth.curves]
    none = tuple(0 for _ in types)
    found = 0.0
    for choice in itertools.product(*(range(n + 1) for n in gpus[: len(types)])):
        for mix, rate in ((none, 0.0), *worth.mixed):
            rest = [have - part for have, part in zip(choice, mix, strict=True)]
            is_one = sum(map(bool, rest)) + (mix != none) < 2
            if sum(choice) <= most and min(rest) >= 0 and (is_one or not worth.is_complete):
                alone = sum(worth.alone(t, n) for t, n in zip(types, rest, strict=True))
                found = max(found, rate + alone)
    return found


GPUS = st.tuples(*(st.integers(0, 6) for _ in TYPES))


@given(worths(), GPUS, st.integers(0, 14))
def test_gpus_are_worth_the_best_choice_among_them(worth, gpus, most):
    found = worth.of(counts_of(worth, gpus), most)
    assert found == pytest.approx(listed(worth, gpus, most), rel=1e-12)


@given(worths(), GPUS, GPUS, st.integers(0, 14), st.integers(0, 3))
def test_more_gpus_are_never_worth_less(worth, gpus, further, most, more):
    both = [n + m for n, m in zip(gpus, further, strict=True)]
    few, many = counts_of(worth, gpus), counts_of(worth, both)
    least = worth.of(few, most) * (1 - 1e-12)  # sums in another order
    assert worth.of(many, most + more) >= least


def test_a_type_that_is_too_small_alone_is_worth_something_in_a_mix():
    assert WORTH.of({"small": 4}, 4) == 0.0
    assert WORTH.of({"big": 1, "small": 4}, 5) == 3.0
    assert WORTH.of({"big": 2, "small": 4}, 6) == 5.0
    assert WORTH.of({"big": 2, "small": 4}, 3) == 4.0


def test_where_all_mixes_are_known_nothing_is_added_up():
    worth = Worth((("big", BIG), ("slow", ((1, 1.0), (2, 2.0)))), (((2, 1), 4.5),), True)
    assert worth.of({"big": 2, "slow": 1}, 3) == 4.5
    assert worth.of({"big": 3, "slow": 2}, 5) == 6.0
    assert worth.of({"big": 2, "slow": 2}, 2) == 4.0


def test_only_mixes_that_bring_more_than_their_parts_are_kept():
    rates = {"big": [[2, 4.0]], "small": []}
    found = Worth.learnt(rates, [[[1, 2], 3.0], [[1, 3], 3.01], [[2, 1], 4.02], [[2, 2], 5.0]])
    assert found.curves == (("big", ((2, 4.0),)), ("small", ()))
    assert found.mixed == (((1, 2), 3.0), ((2, 2), 5.0))


def test_a_mix_is_as_fast_as_the_slowest_of_its_types():
    slowed = WORTH.at_speeds({"small": 0.5})
    assert slowed.of({"big": 2, "small": 2}, 4) == 4.0
    assert slowed.of({"big": 1, "small": 2}, 3) == 1.5
    assert WORTH.at_speeds({"big": 2.0}).of({"big": 1, "small": 2}, 3) == 3.0
