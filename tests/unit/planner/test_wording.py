"""Plurals, names that somebody may have meant, why a file cannot be read, what a value must be."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, ValidationError

from planner.wording import counted, cut, demand_of, did_you_mean, first_line, joined, reason_of


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


def test_few_clauses_are_said_once_each_and_the_rest_is_counted():
    assert joined(["a is off", "b is off", "a is off"]) == "a is off; b is off"
    assert joined(f"{name} is off" for name in "abcde") == "a is off; b is off; c is off and 2 more"


@pytest.mark.parametrize(
    ("found", "meant"),
    [("H100", "h100"), ("a100", "a100-40"), ("h10", "h100"), ("tpu", None), ("", None)],
)
def test_a_name_like_a_known_one_is_suggested(found, meant):
    said = did_you_mean(found, ["h100", "a100-40", "a100-80", "rtx-3090"])
    assert said == ("" if meant is None else f" (did you mean {meant!r}?)")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xff\xfe", "it is not text in UTF-8"),
        (b"{bad", "it is not JSON (line 1, column 2: expecting property name enclosed in"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"{}", "it has no key 'name'"),
    ],
)
def test_a_reason_has_no_words_of_python_and_names_no_file(tmp_path, content, reason):
    file = tmp_path / "some.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises((OSError, ValueError, RecursionError, KeyError)) as caught:
        json.loads(file.read_text(encoding="utf-8"))["name"]
    said = reason_of(caught.value)
    assert said.startswith(reason)
    assert "Errno" not in said
    assert "some.json" not in said


class _Some(BaseModel):
    number: Annotated[int, Field(ge=1, le=2**20)] = 1
    share: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.1
    many: Annotated[list[str], Field(min_length=2)] = ["a", "b"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"number": "x"}, "it must be a whole number"),
        ({"number": 0}, "it must be at least 1"),
        ({"number": 2**21}, "it must be at most 1,048,576"),
        ({"share": 0}, "it must be above 0"),
        ({"share": 0.5}, "it must be below 0.5"),
        ({"share": float("inf")}, "it must be a finite number"),
        ({"many": ["a"]}, "it must have 2 or more entries"),
        ({"many": "a"}, "it must be a list"),
        (5, "it must be a mapping"),
    ],
)
def test_what_a_value_must_be_is_said_in_plain_words(data, words):
    with pytest.raises(ValidationError) as caught:
        _Some.model_validate(data)
    assert demand_of(caught.value.errors()[0]) == words


def test_a_text_that_is_too_long_is_cut_and_says_so():
    assert cut("12345", 5) == "12345"
    assert cut("123456", 5) == "12..."


def test_the_first_line_of_an_error_is_what_happened():
    assert first_line(RuntimeError("no room\nException raised from f at x.cc:1")) == "no room"
    assert first_line(AssertionError()) == ""
