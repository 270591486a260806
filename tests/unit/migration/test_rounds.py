"""migration/rounds.py: both ends are in one round, and no rank has too many operations in one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from migration.rounds import Link, numbered

pairs = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda pair: pair[0] != pair[1])


def test_both_ways_are_in_one_round_where_both_fit():
    assert numbered([("a", Link(0, 1)), ("b", Link(1, 0))], most=2) == {"a": 0, "b": 0}
    assert numbered([("a", Link(0, 1)), ("b", Link(1, 0))], most=1) == {"a": 0, "b": 1}


def test_a_message_that_is_handed_on_comes_in_a_later_round():
    assert numbered([("a", Link(0, 1)), ("b", Link(1, 2, "a"))], most=32) == {"a": 0, "b": 1}


def test_pairs_that_share_no_rank_share_a_round():
    assert set(numbered([("a", Link(0, 1)), ("b", Link(2, 3))], most=1).values()) == {0}


@given(st.lists(pairs, max_size=60), st.integers(1, 4))
def test_no_rank_has_more_operations_in_a_round_and_its_rounds_only_grow(links, most):
    number = numbered(((key, Link(*pair)) for key, pair in enumerate(links)), most)
    operations: Counter[tuple[int, int]] = Counter()
    newest: dict[int, int] = {}
    for key, pair in enumerate(links):
        for rank in pair:
            operations[rank, number[key]] += 1
            assert number[key] >= newest.get(rank, 0)
            newest[rank] = number[key]
    assert max(operations.values(), default=0) <= most
