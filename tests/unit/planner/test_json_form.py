"""Forms of data from files: what passes, and where the first deviation is."""

from __future__ import annotations

import math

import pytest

from planner.json_form import (
    Misfit,
    above_0,
    digits,
    list_of,
    number,
    one_of,
    optional,
    pair,
    record,
    table_of,
    text,
    whole,
)

POINT = record({"x": number, "tags": list_of(text)}, {"label": (optional(text), None)})


def misfit(form, value) -> Misfit:
    with pytest.raises(Misfit) as caught:
        form(value)
    return caught.value


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (text, "a"),
        (one_of("a", "b"), "b"),
        (whole(), -1),
        (whole(1), 1),
        (number, 0.0),
        (number, 3),
        (above_0, 1e-9),
        (optional(text), None),
        (list_of(whole()), [1, 2]),
        (table_of(number), {"a": 1.0}),
    ],
)
def test_what_fits_passes_unchanged(form, value):
    assert form(value) == value


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (text, 1),
        (one_of("a", "b"), "c"),
        (one_of("a", "b"), ["a"]),
        (whole(), True),
        (whole(), 1.0),
        (whole(1), 0),
        (number, True),
        (number, "1"),
        (number, -1e-9),
        (number, math.nan),
        (number, math.inf),
        (above_0, 0),
        (optional(text), 1),
        (list_of(text), "abc"),
        (pair(text, text), ["a"]),
        (table_of(text), []),
        (table_of(text, digits), {"two": "a"}),
        (POINT, []),
    ],
)
def test_what_does_not_fit_says_what_was_found(form, value):
    found = misfit(form, value).found
    assert found == repr(value) or value == {"two": "a"}


def test_whole_numbers_of_a_file_are_numbers():
    assert isinstance(number(3), float)


def test_the_way_to_a_value_is_said():
    assert misfit(table_of(list_of(POINT)), {"a": [{"x": 1, "tags": ["b", 2]}]}).key == "a.0.tags.1"
    assert misfit(pair(text, pair(text, text)), ["a", ["b", 1]]).key == "1.1"
    assert misfit(text, 1).key == ""


def test_a_missing_key_is_found_as_nothing():
    missing = misfit(list_of(POINT), [{"x": 1}])
    assert (missing.key, missing.found) == ("0.tags", None)


def test_keys_may_be_left_out_where_there_is_a_default():
    assert POINT({"x": 1, "tags": []})["label"] is None
    assert POINT({"x": 1, "tags": [], "label": "a"})["label"] == "a"


def test_further_keys_are_refused_or_left_out():
    further = {"x": 1, "tags": [], "colour": "red"}
    refused = misfit(POINT, further)
    assert (refused.key, refused.expected) == ("colour", "no such key")
    opened = record({"x": number}, is_closed=False)
    assert opened(further) == {"x": 1.0}


def test_keys_that_are_numbers_are_read_as_such():
    assert table_of(number, digits)({"2": 1.0}) == {2: 1.0}
