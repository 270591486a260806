"""Plurals, and names that somebody may have meant."""

from __future__ import annotations

import pytest

from planner.wording import counted, did_you_mean


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "node", "1 node"),
        (0, "node", "0 nodes"),
        (12000, "plan", "12,000 plans"),
        (2, "micro-batch", "2 micro-batches"),
        (1, "micro-batch", "1 micro-batch"),
    ],
)
def test_a_noun_is_plural_unless_there_is_one(number, noun, text):
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("found", "meant"),
    [("H100", "h100"), ("a100", "a100-40"), ("h10", "h100"), ("tpu", None), ("", None)],
)
def test_a_name_like_a_known_one_is_suggested(found, meant):
    said = did_you_mean(found, ["h100", "a100-40", "a100-80", "rtx-3090"])
    assert said == ("" if meant is None else f" (did you mean {meant!r}?)")
