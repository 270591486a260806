"""Plurals, names that somebody may have meant, and why a file cannot be read."""

from __future__ import annotations

import json

import pytest

from planner.wording import counted, did_you_mean, reason_of


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
