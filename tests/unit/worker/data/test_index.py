"""An index is read as Megatron wrote it; a damaged one gets one sentence."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from worker.data.index import read_index, write_index
from worker.errors import InvalidDataset


def megatron(sizes, documents, code=8, itemsize=2, pointers=None):
    """The bytes that Megatron-Core's writer gives for sequences of these sizes."""
    if pointers is None:
        pointers = [sum(sizes[:i]) * itemsize for i in range(len(sizes))]
    return b"".join(
        (
            b"MMIDIDX\x00\x00",
            struct.pack("<QBQQ", 1, code, len(sizes), len(documents)),
            struct.pack(f"<{len(sizes)}i", *sizes),
            struct.pack(f"<{len(pointers)}q", *pointers),
            struct.pack(f"<{len(documents)}q", *documents),
        )
    )


@pytest.fixture
def read(tmp_path):
    def of(content):
        (tmp_path / "text.idx").write_bytes(content)
        return read_index(str(tmp_path / "text"))

    return of


def test_documents_of_one_sequence_each(read):
    index = read(megatron([3, 3, 5], [0, 1, 2, 3]))
    assert (index.documents, index.end, index.dtype) == (3, 22, np.uint16)
    assert [index.first_token(document) for document in range(4)] == [0, 3, 6, 11]


def test_documents_of_several_sequences_and_of_none(read):
    index = read(megatron([3, 3, 5, 1], [0, 2, 2, 4], code=4, itemsize=4))
    assert [index.first_token(document) for document in range(4)] == [0, 6, 6, 12]


@given(st.lists(st.integers(0, 9), max_size=40))
def test_what_is_written_is_what_megatron_writes(sizes):
    file = io.BytesIO()
    write_index(file, np.array(sizes, dtype=np.int32), np.dtype(np.uint16))
    assert file.getvalue() == megatron(sizes, list(range(len(sizes) + 1)))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"not an index at all, only text of some length", "Unreadable"),
        (megatron([3], [0, 1])[:12], "Unreadable"),
        (megatron([3], [0, 1])[:40], "Damaged"),
        (megatron([3], [0, 1], code=7), "Unsupported"),
        (megatron([3], [0, 1]).replace(b"\x00\x00\x01", b"\x00\x00\x02", 1), "Unsupported"),
        (megatron([3, 2], [0, 1, 2], pointers=[0, 8]), "Unsupported"),
        (megatron([3, -2], [0, 1, 2]), "Damaged"),
        (megatron([3, 2], [0, 1, 1]), "Damaged"),
        (megatron([3, 2], [0, 2, 1, 2]), "Damaged"),
        (megatron([3, 2], [1, 2]), "Damaged"),
        (megatron([3, 2], []), "Damaged"),
        (
            b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2**63, 2**63),
            "Damaged",
        ),
    ],
    ids=range(12),
)
def test_a_damaged_index_gets_one_sentence(read, content, code):
    with refused(InvalidDataset, code):
        read(content)


def test_an_index_that_is_missing_gets_one_sentence(tmp_path):
    with refused(InvalidDataset, "Unreadable"):
        read_index(str(tmp_path / "none"))


def test_bytes_behind_the_documents_are_left_alone(read):
    """Megatron's multimodal data has the modes of its sequences there."""
    assert read(megatron([3], [0, 1]) + b"\x00").documents == 1


def test_many_documents_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("worker.data.index._BLOCK", 7)
    sizes = np.arange(50, dtype=np.int32)
    with Path(tmp_path / "text.idx").open("wb") as file:
        write_index(file, sizes, np.dtype(np.int32))
    index = read_index(str(tmp_path / "text"))
    assert [index.first_token(document) for document in range(51)] == [
        0,
        *np.cumsum(sizes).tolist(),
    ]
