"""The .idx file of a Megatron dataset: read by memory map, checked whole, and written.

    magic 9 bytes, version u64, token type u8, sequences u64, document bounds u64,
    tokens of each sequence i32, first byte of each sequence i64, first sequence of each document
    i64 and, behind the last one, the number of sequences

Source: Megatron-Core's `indexed_dataset.py` (the format, version 1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from worker.errors import InvalidDataset

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
HEADER = struct.Struct("<9sQBQQ")  # magic, version, token type, sequences, document bounds
MAX_DOCUMENT_TOKENS = (1 << 31) - 1  # a length is an i32
_BLOCK = 1 << 20  # sequences that are checked or written at once


class Index(NamedTuple):
    """Content of an .idx.

    Attributes:
        dtype: of a token.
        starts: first byte of each document in the .bin, int64 [documents]; documents may be empty.
        end: bytes of all documents.
    """

    dtype: np.dtype[np.generic]
    starts: npt.NDArray[np.int64]
    end: int

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self.starts)

    def first_token(self, document: int) -> int:
        """Where a document starts, in tokens; of the number of documents, where the last ends."""
        start = self.starts[document] if document < self.documents else self.end
        return int(start) // self.dtype.itemsize


def read_index(prefix: str) -> Index:
    """The index of the pair `prefix`.

    Raises:
        InvalidDataset: it is missing, unreadable, of another format or damaged.
    """
    path = Path(f"{prefix}.idx")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER.size)
    except OSError as error:
        raise unreadable(prefix, error) from None
    dtype, sequences, bounds = _read_header(prefix, head)
    expected = HEADER.size + sequences * (4 + 8) + bounds * 8
    if size < expected:
        raise InvalidDataset(
            f"dataset {prefix!r} has an .idx of {size} bytes, "
            f"its header states {expected}; it was cut off, prepare it again",
            code="Damaged",
        )
    sizes = _array(path, "<i4", HEADER.size, sequences)
    pointers = _array(path, "<i8", HEADER.size + 4 * sequences, sequences)
    documents = _array(path, "<i8", HEADER.size + (4 + 8) * sequences, bounds)
    end = _check_sequences(prefix, sizes, pointers, dtype.itemsize)
    return Index(dtype, _document_starts(prefix, pointers, documents, end), end)


def write_index(
    file: BinaryIO, lengths: npt.NDArray[np.int32], dtype: np.dtype[np.generic]
) -> None:
    """Write the index of documents of these lengths, in tokens, of one sequence each."""
    code = next(code for code, kind in DTYPES.items() if np.dtype(kind) == dtype.newbyteorder("="))
    file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
    file.writelines(block.astype("<i4").tobytes() for _, block in _blocks(lengths))
    start = 0
    for _, block in _blocks(lengths):
        ends = np.cumsum(block, dtype=np.int64) * dtype.itemsize + start
        file.write(np.concatenate([[start], ends[:-1]]).astype("<i8").tobytes())
        start = int(ends[-1])
    file.writelines(
        np.arange(first, first + len(block), dtype="<i8").tobytes()
        for first, block in _blocks(lengths)
    )
    file.write(np.array([len(lengths)], dtype="<i8").tobytes())


def unreadable(prefix: str, error: OSError) -> InvalidDataset:
    """The sentence about a file of a pair that cannot be read."""
    remedy = "`heddle data prepare` makes a .bin/.idx pair"
    if prefix.endswith((".bin", ".idx")):
        remedy = f"a pair is named without its suffix: {prefix[:-4]}"
    return InvalidDataset(
        f"dataset {prefix!r} cannot be read: {error.filename} "
        f"{(error.strerror or '').lower()}; {remedy}",
        code="Unreadable",
    )


def _read_header(prefix: str, head: bytes) -> tuple[np.dtype[np.generic], int, int]:
    """Token type, sequences and document bounds."""
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise InvalidDataset(
            f"dataset {prefix!r} has an .idx that is not a Megatron index; "
            "`heddle data prepare` makes one",
            code="Unreadable",
        )
    _, version, code, sequences, bounds = HEADER.unpack(head)
    if version != VERSION or code not in DTYPES:
        raise InvalidDataset(
            f"dataset {prefix!r} has index version {version} and token type {code}; "
            f"supported are version {VERSION} and the integer types {', '.join(map(str, DTYPES))}",
            code="Unsupported",
        )
    return np.dtype(DTYPES[code]).newbyteorder("<"), sequences, bounds


def _array(path: Path, kind: str, offset: int, count: int) -> npt.NDArray[np.generic]:
    if not count:  # an empty map is an error of the system
        return np.zeros(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r", offset=offset, shape=(count,))


def _check_sequences(
    prefix: str,
    sizes: npt.NDArray[np.generic],
    pointers: npt.NDArray[np.generic],
    itemsize: int,
) -> int:
    """The bytes of all sequences, which lie behind one another."""
    end = 0
    for first, block in _blocks(sizes):
        lengths = block.astype(np.int64) * itemsize
        if lengths.min() < 0:
            raise InvalidDataset(
                f"dataset {prefix!r} is damaged: its .idx states a document of less than no "
                "tokens; prepare it again",
                code="Damaged",
            )
        starts = np.cumsum(lengths) - lengths + end
        if not np.array_equal(pointers[first : first + len(block)], starts):
            raise InvalidDataset(
                f"dataset {prefix!r} does not keep its documents in one run; prepare it again",
                code="Unsupported",
            )
        end += int(lengths.sum())
    return end


def _document_starts(
    prefix: str,
    pointers: npt.NDArray[np.generic],
    documents: npt.NDArray[np.generic],
    end: int,
) -> npt.NDArray[np.int64]:
    """First byte of each document: the map itself where each sequence is one, as it mostly is."""
    if len(documents) == len(pointers) + 1 and all(
        np.array_equal(block, np.arange(first, first + len(block)))
        for first, block in _blocks(documents)
    ):
        return pointers  # type: ignore[return-value] # its type is in the format
    found = documents.astype(np.int64)
    if not len(found) or found[0] or found[-1] != len(pointers) or (np.diff(found) < 0).any():
        raise InvalidDataset(
            f"dataset {prefix!r} is damaged: the documents in its .idx do not hold each of its "
            f"{len(pointers)} sequences once; prepare it again",
            code="Damaged",
        )
    return np.append(pointers, np.int64(end)).astype(np.int64)[found[:-1]]


def _blocks(array: npt.NDArray[np.generic]) -> Iterator[tuple[int, npt.NDArray[np.generic]]]:
    """(index of its first element, part) of an array, so that no copy is as large as it is."""
    for first in range(0, len(array), _BLOCK):
        yield first, array[first : first + _BLOCK]
