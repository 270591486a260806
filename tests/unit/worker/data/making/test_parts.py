"""A part is there when it is whole, and not before."""

from __future__ import annotations

import pytest

from tests.refusals import refused
from worker.data.making.parts import lengths_of, read_part, token_type, write_part
from worker.data.making.readers import Keys
from worker.data.making.tokenizing import tokenization
from worker.data.making.units import each_unit
from worker.errors import InvalidDataset


@pytest.fixture
def unit(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": ""}\n{"text": "three"}\n')
    (found,) = each_unit([tmp_path / "a.jsonl"])
    return found


def test_what_is_written_is_read_again(unit, tmp_path):
    part = write_part(tmp_path, "x", unit, Keys(), tokenization(None), None)
    assert part == (2, 0, 8, 10, "")
    assert read_part(tmp_path, "x") == part
    assert lengths_of(tmp_path, ["x", "x"]).tolist() == [4, 6, 4, 6]


def test_a_part_that_was_not_finished_is_none(unit, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text"\n')
    with pytest.raises(InvalidDataset):
        write_part(tmp_path, "x", unit, Keys(), tokenization(None), None)
    assert (tmp_path / "x.bin").exists()
    assert read_part(tmp_path, "x") is None


@pytest.mark.parametrize("content", ["", "[1, 2]", "7"])
def test_a_note_that_is_damaged_is_no_part(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    assert read_part(tmp_path, "x") is None


def test_a_document_that_no_length_can_say_is_refused(unit, tmp_path, monkeypatch):
    monkeypatch.setattr("worker.data.making.parts.MAX_DOCUMENT_TOKENS", 5)
    with refused(InvalidDataset, "OutOfRange"):
        write_part(tmp_path, "x", unit, Keys(), tokenization(None), None)


def test_tokens_take_two_bytes_where_they_fit():
    assert [token_type(vocab).itemsize for vocab in (256, 65536, 65537)] == [2, 2, 4]
