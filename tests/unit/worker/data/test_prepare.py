"""Text becomes a Megatron pair: sorted, repeatable, nothing half written."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.unit.worker.data.texts import of
from worker.data.dataset import Dataset
from worker.data.prepare import PreparedDataset, prepare
from worker.errors import InvalidDataset


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


def tokens(prefix):
    return np.fromfile(f"{prefix}.bin", dtype="<u2").tobytes()[::2]


def test_a_folder_gives_its_text_files_in_sorted_order(folder, tmp_path):
    done = prepare([folder], tmp_path / "out" / "corpus")
    assert tokens(tmp_path / "out" / "corpus") == b"onetwothree"
    assert done == PreparedDataset(str(tmp_path / "out" / "corpus"), 3, 1, 11, 11, 256)
    assert "skipped 1 unreadable or binary" in str(done)


def test_a_file_that_is_named_is_taken_whatever_its_suffix_and_once(folder, tmp_path):
    (folder / "notes.log").write_text("log")
    prepare([folder / "notes.log", folder / "b.py", folder], tmp_path / "corpus")
    assert tokens(tmp_path / "corpus") == b"logtwoonethree"


def test_the_same_text_gives_the_same_bytes(folder, tmp_path):
    for name in ("x", "y"):
        prepare([folder], tmp_path / name)
    for suffix in (".bin", ".idx"):
        assert (
            Path(f"{tmp_path}/x{suffix}").read_bytes() == Path(f"{tmp_path}/y{suffix}").read_bytes()
        )


def test_the_index_is_that_of_megatron(folder, tmp_path):
    """Byte by byte: magic, version, uint16, sizes, byte offsets, document bounds."""
    prepare([folder], tmp_path / "corpus")
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
    assert tokens(tmp_path / "corpus") == b"onetw"
    assert (done.documents, done.text_bytes) == (2, 5)


def test_a_tokenizer_file_gives_its_own_tokens(folder, tmp_path):
    tokenizer = Tokenizer(WordLevel({"one": 0, "two": 1, "three": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    done = prepare([folder], tmp_path / "corpus", tokenizer=tmp_path / "tokenizer.json")
    assert (done.tokens, done.vocab) == (3, 4)
    dataset = Dataset(of(tmp_path / "corpus"), 2, vocab=4)
    assert dataset.sample(1, 0).tokens.tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_a_bad_tokenizer_gets_one_sentence(folder, tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidDataset, match=r"tokenizer .* cannot be read"):
        prepare([folder], tmp_path / "corpus", tokenizer=path)


def test_a_missing_input_is_named(tmp_path):
    with pytest.raises(InvalidDataset, match=r"'.*/nowhere' does not exist"):
        prepare([tmp_path / "nowhere"], tmp_path / "corpus")


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "X.JSONL", "x.ndjson"])
def test_json_is_refused_for_its_syntax_is_no_text(tmp_path, name):
    (tmp_path / name).write_text('{"text": "one"}\n')
    with pytest.raises(InvalidDataset, match=rf"input '.*/{name}' is JSON, whose brackets"):
        prepare([tmp_path / name], tmp_path / "corpus")
    assert not list(tmp_path.glob("corpus*"))


def test_without_text_nothing_is_written_and_an_older_pair_stays(folder, tmp_path):
    prepare([folder], tmp_path / "corpus")
    before = (tmp_path / "corpus.bin").read_bytes()
    with pytest.raises(InvalidDataset, match="there is no text in"):
        prepare([folder / "image.png"], tmp_path / "corpus")
    assert (tmp_path / "corpus.bin").read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_an_output_that_cannot_be_written_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidDataset, match=r"cannot write '.*/file/corpus.bin'"):
        prepare([folder], tmp_path / "file" / "corpus")
