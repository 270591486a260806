"""Who looks for a fault reads the first traceback first, and no line is missing."""

from __future__ import annotations

from heddle.cli.pod_logs import Follower, PodLog, lines_of, ordered

TRACE = "Traceback (most recent call last):"
CALM = PodLog("a", "2026-01-01T00:00:01Z step 1\n2026-01-01T00:00:02Z step 2\n")
LATE = PodLog("b", f"2026-01-01T00:00:00Z step 1\n2026-01-01T00:00:09Z rank 1: {TRACE}\n")
EARLY = PodLog("c", f"2026-01-01T00:00:05Z {TRACE}\n2026-01-01T00:00:30Z {TRACE}\n")


def test_pods_come_by_the_time_of_their_first_traceback_then_by_name():
    other = PodLog("0", "2026-01-01T00:00:00Z step 1\n")
    assert [log.pod for log in ordered([CALM, LATE, EARLY, other])] == ["c", "b", "0", "a"]


def test_every_line_says_its_pod_and_keeps_its_words():
    assert lines_of(PodLog("a", "T one  two\nT\nT three")) == [
        "a | one  two", "a | ", "a | three"
    ]  # fmt: skip


def test_an_empty_log_has_neither_lines_nor_a_traceback():
    empty = PodLog("a", "")
    assert lines_of(empty) == []
    assert empty.first_traceback == ""


def test_new_lines_come_once_in_the_order_of_their_times_whatever_is_read_again():
    def at(second, words):
        return f"2026-01-01T00:00:{second:02}.000000000Z {words}\n"

    one, two = at(1, "a"), at(3, "b") + at(3, "b, too")
    follower = Follower()
    assert follower.since("p") == ""
    assert follower.new_lines([PodLog("p", one + two), PodLog("q", at(2, "c"))]) == [
        "p | a",
        "q | c",
        "p | b",
        "p | b, too",
    ]
    assert follower.since("p") == "2026-01-01T00:00:03Z"
    again = [PodLog("p", two + at(3, "b, last") + at(4, "d")), PodLog("r", at(1, "e"))]
    assert follower.new_lines(again) == ["r | e", "p | b, last", "p | d"]
    assert follower.new_lines([PodLog("p", at(4, "d")), PodLog("r", "")]) == []
