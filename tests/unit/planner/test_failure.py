"""planner/failure.py: an error crosses from one process to another with its code and field."""

from __future__ import annotations

import pytest

from planner.errors import InvalidPlan
from planner.failure import Failure


def test_an_error_is_read_as_it_was_told():
    error = InvalidPlan("{field} is 0;\ngive 1", field="stages", code="OutOfRange")
    failure = Failure.of(error, {"stages": "--stages"})
    assert failure == Failure("OutOfRange", "stages", "--stages is 0;\ngive 1")
    assert Failure.read(f"a warning\n{failure.to_line()}\n".encode(), 2) == failure


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"", "it said nothing (exit status -9)"),
        (b"Traceback\nKeyError: 3\n", "KeyError: 3"),
        (b"[1]", "[1]"),
        (b'{"code": "Failed"}', '{"code": "Failed"}'),
    ],
)
def test_a_process_that_dies_without_a_word_for_programs_failed(said, message):
    assert Failure.read(said, -9) == Failure("Failed", None, message)
