"""An object that nobody can read is left out with a word, once."""

from __future__ import annotations

import logging

import pytest

from heddle_operator.kube.malformed_objects import MalformedObjects
from planner.errors import InvalidPlan

BODY = {"kind": "Pod", "metadata": {"namespace": "ns", "name": "odd", "uid": "1"}}


@pytest.mark.parametrize(
    "error", [KeyError("node"), ValueError("a\nb"), RecursionError(), InvalidPlan("x")]
)
def test_it_is_left_out_and_said_once(error, caplog):
    def view():
        raise error

    malformed = MalformedObjects()
    with caplog.at_level(logging.WARNING):
        assert malformed.read(BODY, view) is None
        assert malformed.read(BODY, view) is None
    (said,) = caplog.messages
    assert said.startswith(f"Pod ns/odd is left out, it cannot be read: {type(error).__name__}")
    assert "\n" not in said


def test_what_can_be_read_is_read():
    assert MalformedObjects().read(BODY, lambda: 7) == 7
