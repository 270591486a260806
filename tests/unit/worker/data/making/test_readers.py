"""Documents come out of records as they are; a record that is wrong is named with its line."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from worker.data.making.readers import Document, Keys, documents
from worker.data.making.units import Unit, each_unit
from worker.errors import InvalidDataset


def read(path, keys=Keys()):  # noqa: B008 # a tuple
    return [document for unit in each_unit([path]) for document in documents(unit, keys)]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20),
    st.lists(st.integers(0, 400), max_size=5),
)
def test_each_line_is_in_one_range_however_a_file_is_cut(tmp_path_factory, texts, cuts):
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes(b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts))
    size = path.stat().st_size
    bounds = sorted({0, size, *(cut for cut in cuts if cut < size)})
    found = [
        document.text.decode()
        for start, stop in itertools.pairwise(bounds)
        for document in documents(Unit("lines", (str(path),), start, stop, 0), Keys())
    ]
    assert found == texts


def test_blank_lines_are_none_and_the_last_line_needs_no_end(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('\n{"text": "a"}\n  \n{"text": "b"}')
    assert read(path) == [Document(b"a"), Document(b"b")]


def test_a_pair_has_a_prompt_and_a_completion(tmp_path):
    (tmp_path / "x.ndjson").write_text('{"q": "a", "r": "b"}\n')
    assert read(tmp_path / "x.ndjson", Keys(prompt="q", completion="r")) == [Document(b"a", b"b")]


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ('{"text": "a"', ("Malformed", None)),
        ("no", ("Malformed", None)),
        ("[" * 100_000, ("Malformed", None)),
        ("[1]", ("Malformed", None)),
        ('{"body": "a", "id": 1}', ("Unknown", "text")),
        ('{"text": [{"role": "user"}]}', ("Malformed", "text")),
        ('{"text": null}', ("Malformed", "text")),
    ],
)
def test_a_record_that_is_wrong_is_named_with_its_line(tmp_path, line, mistake):
    (tmp_path / "x.jsonl").write_text(f'{{"text": "a"}}\n\n{line}\n')
    with refused(InvalidDataset, *mistake):
        read(tmp_path / "x.jsonl")


def test_half_a_surrogate_pair_is_replaced(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a\\ud800b"}\n')
    assert read(tmp_path / "x.jsonl") == [Document(b"a?b")]


def test_plain_text_has_no_prompts(tmp_path):
    (tmp_path / "x.txt").write_text("a")
    with refused(InvalidDataset, "Unsupported", "prompt_key"):
        read(tmp_path / "x.txt", Keys(prompt="q", completion="r"))


def test_a_table_without_the_column_is_refused_with_those_it_has(tmp_path):
    import pyarrow as pa
    from pyarrow.parquet import write_table

    write_table(pa.table({"body": ["a", None], "id": [1, 2]}), tmp_path / "x.parquet")
    with refused(InvalidDataset, "Unknown", "text"):
        read(tmp_path / "x.parquet")
    with refused(InvalidDataset, "Malformed", "body"):
        read(tmp_path / "x.parquet", Keys("body"))


def test_a_table_whose_pages_are_damaged_is_named(tmp_path):
    import pyarrow as pa
    from pyarrow.parquet import write_table

    path = tmp_path / "x.parquet"
    write_table(pa.table({"text": ["some words"] * 99}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    with refused(InvalidDataset, "Unreadable"):
        read(path)
