"""Who looks for a fault reads the first traceback first, and no line is missing."""

from __future__ import annotations

from heddle.cli.pod_logs import PodLog, lines_of, ordered

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
