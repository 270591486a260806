"""Input becomes a Megatron pair: repeatable by any number of processes, nothing half written."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.refusals import refused
from tests.unit.worker.data.texts import of
from worker.data.corpus import IndexedCorpus
from worker.data.dataset import Dataset
from worker.data.making.prepare import PreparedDataset, prepare
from worker.data.making.readers import Keys
from worker.errors import InvalidDataset

PAIRS = Keys(prompt="ask", completion="answer")


@pytest.fixture
def folder(tmp_path):
    texts = tmp_path / "texts"
    (texts / "deep").mkdir(parents=True)
    (texts / "b.py").write_text("two")
    (texts / "a.md").write_text("one")
    (texts / "deep" / "c.txt").write_text("three")
    (texts / "image.png").write_bytes(b"\x89PNG")
    (texts / "binary.txt").write_bytes(b"\xff\xfe\0")
    (texts / "empty.rst").write_text("")
    return texts


@pytest.fixture
def tokenizer(tmp_path):
    words = {"one": 0, "two": 1, "three": 2, "?": 3, "</s>": 4}
    made = Tokenizer(WordLevel(words, unk_token="?"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def tokens(prefix):
    return np.fromfile(f"{prefix}.bin", dtype="<u2").tobytes()[::2]


def files_of(prefix):
    return {path.suffix: path.read_bytes() for path in Path(prefix).parent.glob(f"{prefix.name}.*")}


def test_a_folder_gives_its_text_files_in_sorted_order(folder, tmp_path):
    done = prepare([folder], tmp_path / "out" / "corpus")
    assert tokens(tmp_path / "out" / "corpus") == b"one\0two\0three\0"
    assert done == PreparedDataset(
        prefix=str(tmp_path / "out" / "corpus"),
        documents=3,
        skipped=1,
        text_bytes=11,
        tokens=14,
        vocab=256,
        first_skipped=str(folder / "binary.txt"),
    )
    binary = str(folder / "binary.txt")
    assert f"skipped 1 unreadable or binary file ({binary!r})" in str(done)


def test_a_file_that_is_named_is_taken_whatever_its_suffix_and_once(folder, tmp_path):
    (folder / "notes.log").write_text("log")
    prepare([folder / "notes.log", folder / "b.py", folder], tmp_path / "corpus", end="none")
    assert tokens(tmp_path / "corpus") == b"logtwoonethree"


def test_a_pipe_or_device_in_a_folder_is_skipped_where_reading_would_never_end(folder, tmp_path):
    (folder / "endless.txt").symlink_to("/dev/zero")
    for name in ("pipe.md", "pipe.jsonl", "pipe.parquet"):
        os.mkfifo(folder / name)
    done = prepare([folder], tmp_path / "corpus")
    assert tokens(tmp_path / "corpus") == b"one\0two\0three\0"
    assert (done.skipped, done.first_skipped) == (5, str(folder / "binary.txt"))


def test_the_index_is_that_of_megatron(folder, tmp_path):
    """Byte by byte: magic, version, uint16, sizes, byte offsets, document bounds."""
    prepare([folder], tmp_path / "corpus", end="none")
    assert (tmp_path / "corpus.idx").read_bytes() == b"".join(
        (
            b"MMIDIDX\x00\x00",
            struct.pack("<QBQQ", 1, 8, 3, 4),
            struct.pack("<3i", 3, 3, 5),
            struct.pack("<3q", 0, 6, 12),
            struct.pack("<4q", 0, 1, 2, 3),
        )
    )


def test_max_bytes_stops_and_cuts_the_last_document(folder, tmp_path):
    done = prepare([folder], tmp_path / "corpus", max_bytes=5)
    assert tokens(tmp_path / "corpus") == b"one\0tw\0"
    assert (done.documents, done.text_bytes) == (2, 5)


def test_a_tokenizer_file_gives_its_own_tokens_and_its_end_of_document(folder, tmp_path, tokenizer):
    done = prepare([folder], tmp_path / "corpus", tokenizer=tokenizer)
    assert (done.tokens, done.vocab) == (6, 5)
    sample = Dataset(of(tmp_path / "corpus"), 5, vocab=5).sample(1, 0)
    assert sample.tokens.tolist() == [0, 4, 1, 4, 2, 4]


def test_what_the_model_must_have_is_noted(folder, tmp_path, tokenizer):
    prepare([folder], tmp_path / "corpus", tokenizer=tokenizer)
    notes = IndexedCorpus(str(tmp_path / "corpus")).notes
    assert (notes["vocab"], notes["end_of_document"], notes["documents"]) == (5, 4, 3)
    with refused(InvalidDataset, "Mismatch"):
        Dataset(of(tmp_path / "corpus"), 2, vocab=4)


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_lines_of_json_give_their_text_alone(tmp_path):
    path = lines(tmp_path / "x.jsonl", [{"text": "one", "url": "x"}, {"text": "Zwölf"}])
    prepare([path], tmp_path / "corpus")
    assert tokens(tmp_path / "corpus").decode() == "one\0Zwölf\0"


def test_of_a_pair_the_prompt_is_no_label(tmp_path):
    records = [{"ask": "a?", "answer": "b!"}, {"ask": "cc", "answer": ""}]
    prepare([lines(tmp_path / "x.jsonl", records)], tmp_path / "corpus", keys=PAIRS)
    corpus = IndexedCorpus(str(tmp_path / "corpus"))
    assert tokens(tmp_path / "corpus") == b"a?b!\0cc\0"
    assert corpus.mask is not None
    assert corpus.mask.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]


def test_a_pair_replaced_by_texts_leaves_no_mask(tmp_path):
    path = lines(tmp_path / "x.jsonl", [{"ask": "a", "answer": "b", "text": "c"}])
    prepare([path], tmp_path / "corpus", keys=PAIRS)
    prepare([path], tmp_path / "corpus")
    assert set(files_of(tmp_path / "corpus")) == {".bin", ".idx", ".json"}


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """Text, JSON lines and Parquet, so small units that each file is several."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    monkeypatch.setattr("worker.data.making.units.UNIT_BYTES", 100)
    folder = tmp_path / "mixed"
    folder.mkdir()
    for number in range(12):
        (folder / f"a{number:02}.txt").write_text(f"text {number} " * 4)
    lines(folder / "b.jsonl", [{"text": "line " * (n % 9)} for n in range(40)])
    table = pa.table({"text": [f"row {n}" for n in range(30)], "n": range(30)})
    write_table(table, folder / "c.parquet", row_group_size=7)
    return folder


def test_texts_lines_and_rows_of_a_folder_come_in_order(mixed, tmp_path):
    prepare([mixed], tmp_path / "corpus")
    found = tokens(tmp_path / "corpus").decode().split("\0")
    assert found[:12] == [f"text {n} " * 4 for n in range(12)]
    assert found[12:-31] == ["line " * (n % 9) for n in range(40) if n % 9]
    assert found[-31:] == [*(f"row {n}" for n in range(30)), ""]


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_whatever_the_number_of_processes(mixed, tmp_path):
    for count in (1, 2):
        prepare([mixed], tmp_path / f"by{count}", processes=count)
    assert files_of(tmp_path / "by1") == files_of(tmp_path / "by2")


def test_a_command_that_was_stopped_goes_on_where_it_was(mixed, tmp_path):
    told = []

    def stop(done, total):
        told.append((done, total))
        if len(told) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([mixed], tmp_path / "corpus", processes=1, progress=stop)
    assert not (tmp_path / "corpus.idx").exists()
    done = prepare([mixed], tmp_path / "corpus", processes=1)
    assert done.resumed == 4
    assert "4 parts of an earlier run went in" in str(done)
    prepare([mixed], tmp_path / "whole", processes=1)
    assert files_of(tmp_path / "corpus") == files_of(tmp_path / "whole")
    assert told[-1][0] < told[-1][1]
    assert not (tmp_path / "corpus.parts").exists()


def test_a_file_that_changed_meanwhile_is_read_again(mixed, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([mixed], tmp_path / "corpus", processes=1, progress=stop)
    (mixed / "a00.txt").write_text("changed")
    assert prepare([mixed], tmp_path / "corpus", processes=1).resumed == 0
    assert tokens(tmp_path / "corpus").startswith(b"changed\0")


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_a_bad_tokenizer_gets_one_sentence(folder, tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with refused(InvalidDataset, "Unreadable"):
        prepare([folder], tmp_path / "corpus", tokenizer=path)


def test_a_missing_input_is_named(tmp_path):
    with refused(InvalidDataset, "Missing"):
        prepare([tmp_path / "nowhere"], tmp_path / "corpus")


def test_without_text_nothing_is_written_and_an_older_pair_stays(folder, tmp_path):
    prepare([folder], tmp_path / "corpus")
    before = files_of(tmp_path / "corpus")
    with refused(InvalidDataset, "Missing"):
        prepare([folder / "image.png"], tmp_path / "corpus")
    assert files_of(tmp_path / "corpus") == before
    assert not (tmp_path / "corpus.parts").exists()


def test_an_output_that_cannot_be_written_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with refused(InvalidDataset, "Unwritable"):
        prepare([folder], tmp_path / "file" / "corpus")
    (tmp_path / "taken.bin").mkdir()
    with refused(InvalidDataset, "Unwritable"):
        prepare([folder], tmp_path / "taken")
