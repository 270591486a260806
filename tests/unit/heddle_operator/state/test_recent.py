"""What is remembered is bounded, and the newest stays."""

from __future__ import annotations

from heddle_operator.state.recent import Recent


def test_a_member_is_new_once():
    seen: Recent[str] = Recent()
    assert [seen.add("a"), seen.add("a"), "a" in seen] == [True, False, True]


def test_the_oldest_go_first_and_what_is_added_again_is_young():
    seen: Recent[int] = Recent(limit=3)
    for number in (1, 2, 3, 1, 4):
        seen.add(number)
    assert [number for number in range(6) if number in seen] == [1, 3, 4]


def test_weeks_of_churn_take_no_more_than_the_limit():
    seen: Recent[int] = Recent()
    for number in range(10_000):
        seen.add(number)
    assert len(seen) == 1024
