"""A pair is opened with what lies beside it, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.worker.data.texts import write_pair
from worker.data.corpus import IndexedCorpus
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
    with pytest.raises(InvalidDataset, match=rf"its \{suffix} has 2 bytes, its .idx states"):
        IndexedCorpus(prefix)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_file_that_is_missing_is_named(tmp_path, suffix):
    prefix = write_pair(tmp_path / "text", [[1, 2, 3]])
    Path(f"{prefix}{suffix}").unlink()
    with pytest.raises(InvalidDataset, match=rf"text{suffix} no such file .*`heddle data prepare`"):
        IndexedCorpus(prefix)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_notes_that_cannot_be_read_are_none(tmp_path, content):
    """They are ours alone, and nothing that is trained depends on them."""
    prefix = write_pair(tmp_path / "text", [[1, 2, 3]])
    Path(f"{prefix}.json").write_bytes(content)
    assert IndexedCorpus(prefix).notes == {}
