"""The stored plans: whole files, resumable by row."""

from __future__ import annotations

import pytest

from benchmarks.paper.cells import cells_of
from benchmarks.paper.store import is_kept, path_of, read_cell, stamped, write_cell
from planner.errors import InvalidRequest

CELL = cells_of("uniform")[0]
ROW = {"finished": False, "budget_s": 2.0}


def test_rows_are_read_as_they_were_written(tmp_path):
    write_cell(CELL, {"amp": ROW, "metis": {"finished": True, "budget_s": 1.0}}, tmp_path)
    assert read_cell(CELL, tmp_path)["amp"] == ROW
    assert [path.name for path in tmp_path.iterdir()] == [path_of(CELL).name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": "llama3-8b"}'])
def test_a_half_written_cell_counts_as_not_there(tmp_path, text):
    path_of(CELL, tmp_path).write_text(text)
    assert read_cell(CELL, tmp_path) == {}


def test_a_cell_of_another_composition_counts_as_not_there(tmp_path):
    other = cells_of("uniform")[1]
    write_cell(other, {"amp": ROW}, tmp_path)
    path_of(other, tmp_path).rename(path_of(CELL, tmp_path))
    assert read_cell(CELL, tmp_path) == {}


@pytest.mark.parametrize(
    ("row", "budget_s", "kept"),
    [
        (None, 1.0, False),
        (ROW, 2.0, True),
        (ROW, 3.0, False),
        ({"finished": True, "budget_s": 1.0}, 600.0, True),
    ],
)
def test_a_row_is_kept_if_it_had_as_many_seconds_or_ended_by_itself(row, budget_s, kept):
    assert is_kept(row, budget_s) == kept


def test_a_row_says_commit_date_and_machine():
    assert stamped(ROW).keys() == {
        *ROW,
        "commit",
        "date",
        "machine",
        "load",
    }


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest) as refused:
        write_cell(CELL, {}, tmp_path / "file")
    assert refused.value.code == "Unwritable"
