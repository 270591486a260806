"""planner/given_text.py: `-` is standard input, and every other name a file."""

from __future__ import annotations

import io

import pytest

from planner.given_text import read_text


def standard_input(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))


def test_a_hyphen_is_standard_input_in_utf_8_whatever_the_terminal_has(monkeypatch):
    standard_input(monkeypatch, "caf\u00e9".encode())
    assert read_text("-") == "caf\u00e9"


def test_what_is_no_utf_8_is_no_text(monkeypatch):
    standard_input(monkeypatch, b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_text("-")


def test_a_standard_input_that_the_shell_closed_is_empty(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert read_text("-") == ""


def test_another_name_is_a_file(tmp_path):
    (tmp_path / "a.yaml").write_text("one", encoding="utf-8")
    assert read_text(tmp_path / "a.yaml") == "one"
