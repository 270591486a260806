"""heddle_operator/apis/wording.py: names in a list, and how a process ended."""

from __future__ import annotations

import pytest

from heddle_operator.apis.wording import ended_with, named, shortened


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a"], "pod a"),
        (["a", "b"], "pods a and b"),
        (["a", "b", "c"], "pods a, b and c"),
        (["a", "b", "c", "d", "e"], "pods a, b, c and 2 more"),
    ],
)
def test_few_names_are_listed_and_the_rest_is_counted(names, words):
    assert named("pod", names) == words


@pytest.mark.parametrize(("text", "words"), [("a word", "a word"), ("ööööö", "ö ..."), ("", "")])
def test_a_long_text_is_cut_between_two_letters(text, words):
    assert shortened(text, 7) == words


def test_a_signal_is_told_from_an_exit_status():
    assert ended_with(2) == "ended with exit status 2"
    assert ended_with(-9) == "ended by signal 9"
