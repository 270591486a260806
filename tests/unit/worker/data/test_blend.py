"""A blend keeps its shares at every position, and no sample of a corpus is skipped or doubled."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from worker.data.blend import Blend

WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


@given(WEIGHTS, st.integers(1, 400))
def test_each_corpus_gives_its_samples_in_order_none_skipped_and_none_twice(weights, positions):
    blend = Blend(weights)
    following = [0] * len(weights)
    for position in range(positions):
        corpus, index = blend.place(position)
        assert index == following[corpus]
        following[corpus] += 1
    assert following == [blend.count(corpus, positions) for corpus in range(len(weights))]


@given(WEIGHTS, st.integers(0, 10**15))
def test_each_share_is_exact_but_for_one_sample_a_level(weights, positions):
    blend, exact = Blend(weights), [Fraction(str(weight)) for weight in weights]
    levels = math.ceil(math.log2(len(weights))) if len(weights) > 1 else 0
    for corpus, weight in enumerate(exact):
        ideal = positions * weight / sum(exact)
        assert abs(blend.count(corpus, positions) - ideal) <= levels


@given(WEIGHTS, st.integers(0, 10**15))
def test_a_position_far_out_agrees_with_the_counts_before_it(weights, position):
    blend = Blend(weights)
    corpus, index = blend.place(position)
    assert index == blend.count(corpus, position)
    assert blend.count(corpus, position + 1) == index + 1


def test_decimal_weights_are_exact():
    blend = Blend([0.1, 0.2, 0.7])
    assert [blend.count(corpus, 10**6) for corpus in range(3)] == [100_000, 200_000, 700_000]


def test_only_the_ratios_of_weights_count():
    first, second = Blend([1, 2, 3]), Blend([0.5, 1.0, 1.5])
    assert [first.place(i) for i in range(60)] == [second.place(i) for i in range(60)]


def test_the_blend_is_the_same_on_every_machine_and_version():
    assert [Blend([1, 1, 2]).place(i)[0] for i in range(8)] == [2, 2, 1, 0, 2, 2, 1, 0]
