"""Units hold every file once, and each line and row group once."""

from __future__ import annotations

import os
import sys

import pytest

from tests.refusals import refused
from worker.data.making import units as module
from worker.data.making.units import each_unit, open_parquet
from worker.errors import InvalidDataset


def test_small_texts_share_a_unit_and_the_order_of_files_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "UNIT_BYTES", 10)
    for name, size in (("a.txt", 4), ("b.txt", 7), ("c.jsonl", 25), ("d.txt", 3), ("e.md", 1)):
        (tmp_path / name).write_text("x" * size)
    found = [(unit.kind, len(unit.files), unit.start, unit.stop) for unit in each_unit([tmp_path])]
    assert found == [
        ("text", 2, 0, 2),
        ("lines", 1, 0, 10),
        ("lines", 1, 10, 20),
        ("lines", 1, 20, 25),
        ("text", 2, 0, 2),
    ]


@pytest.mark.parametrize("name", ["x.json", "X.JSON"])
def test_plain_json_is_refused_for_its_syntax_is_no_text(tmp_path, name):
    (tmp_path / name).write_text('{"text": "one"}\n')
    with refused(InvalidDataset, "Unsupported"):
        list(each_unit([tmp_path / name]))


def test_a_pipe_has_no_kind_and_hidden_files_are_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with refused(InvalidDataset, "Unsupported"):
        list(each_unit([tmp_path / "pipe"]))
    for hidden in (".hidden.txt", ".git/a.txt", "a.txt"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_text("one")
    (unit,) = each_unit([tmp_path])
    assert unit.files == (str(tmp_path / "a.txt"),)


def test_a_digest_names_the_unit_its_files_and_the_settings(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (unit,) = each_unit([tmp_path])
    before = unit.digest("x")
    assert before == unit.digest("x") != unit.digest("y")
    (tmp_path / "a.txt").write_text("more")
    assert unit.digest("x") != before
    (tmp_path / "a.txt").unlink()
    assert unit.digest("x") != before


def test_parquet_without_pyarrow_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused(InvalidDataset, "Missing"):
        open_parquet("x.parquet")


def test_damaged_parquet_is_one_sentence(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"no table at all")
    with refused(InvalidDataset, "Unreadable"):
        list(each_unit([tmp_path]))


def test_who_needs_the_first_units_only_looks_at_no_later_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "x.parquet").write_bytes(b"no table at all")
    assert next(each_unit([tmp_path])).kind == "lines"


def test_what_is_missing_is_told_before_anything_is_read(tmp_path):
    with refused(InvalidDataset, "Missing"):
        each_unit([tmp_path, tmp_path / "missing"])
