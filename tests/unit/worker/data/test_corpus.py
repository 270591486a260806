"""A pair is opened with what lies beside it, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refused
from tests.unit.worker.data.texts import of, write_pair
from worker.data.corpus import IndexedCorpus, check_pairs
from worker.data.making.tokenizing import digest_of
from worker.errors import InvalidDataset


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_tokens_of_every_type_are_read(tmp_path, dtype):
    corpus = IndexedCorpus(write_pair(tmp_path / "text", [[1, 2, 3], [4], [5, 6]], dtype))
    assert corpus.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert corpus.mask is None
    assert corpus.notes == {}


def test_documents_that_begin_in_a_range_are_found(tmp_path):
    corpus = IndexedCorpus(write_pair(tmp_path / "text", [[1, 2, 3], [], [4], [5, 6]]))
    assert corpus.boundaries(0, 6) == [0, 3, 4]
    assert corpus.boundaries(1, 4) == [3]
    assert corpus.boundaries(4, 4) == []


def test_a_mask_beside_the_tokens_is_read(tmp_path):
    corpus = IndexedCorpus(write_pair(tmp_path / "text", [[1, 2, 3]], mask=[0, 1, 1]))
    assert corpus.mask is not None
    assert corpus.mask.tolist() == [0, 1, 1]


@pytest.mark.parametrize("suffix", [".bin", ".mask"])
def test_a_file_of_another_length_is_damage(tmp_path, suffix):
    prefix = write_pair(tmp_path / "text", [[1, 2, 3]], mask=[1, 1, 1])
    with Path(f"{prefix}{suffix}").open("r+b") as file:
        file.truncate(2)
    with refused(InvalidDataset, "Damaged"):
        IndexedCorpus(prefix)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_file_that_is_missing_is_named(tmp_path, suffix):
    prefix = write_pair(tmp_path / "text", [[1, 2, 3]])
    Path(f"{prefix}{suffix}").unlink()
    with refused(InvalidDataset, "Unreadable"):
        IndexedCorpus(prefix)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_notes_that_cannot_be_read_are_none(tmp_path, content):
    """They are ours alone, and nothing that is trained depends on them."""
    prefix = write_pair(tmp_path / "text", [[1, 2, 3]])
    Path(f"{prefix}.json").write_bytes(content)
    assert IndexedCorpus(prefix).notes == {}


def test_a_pair_of_another_tokenizer_than_the_jobs_is_refused(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).write_text(json.dumps({"model": {"vocab": {name: 0}}}))
    prefix = write_pair(tmp_path / "text", [[0, 0, 0]])
    spec = of(prefix, tokenizer=str(tmp_path / "one"))
    check_pairs(spec, 9)  # another program made it, and nothing is noted
    notes = {"vocab": 1, "tokenizer_sha256": digest_of(tmp_path / "one")}
    Path(f"{prefix}.json").write_text(json.dumps(notes))
    check_pairs(spec, 9)
    with refused(InvalidDataset, "Mismatch"):
        check_pairs(of(prefix, tokenizer=str(tmp_path / "other")), 9)
    Path(f"{prefix}.json").write_text(json.dumps({"vocab": 256, "tokenizer_sha256": None}))
    with refused(InvalidDataset, "Mismatch"):  # of bytes
        check_pairs(spec, 256)
