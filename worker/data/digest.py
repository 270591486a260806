"""The digest of a data set: equal where the samples of every step are equal, wherever it lies.

Invariant: it has no path, so that a job may go on where its data has another one.
Source: XXH3 of 128 bits (github.com/Cyan4973/xxHash).
"""

from __future__ import annotations

from pathlib import Path

import xxhash

from worker.errors import InvalidDataset
from worker.training_settings import DataSpec

END_BYTES = 1 << 20  # of each end of a file of tokens; an index and a mask are read whole
CHUNK_BYTES = 1 << 20


def data_digest(data: DataSpec) -> str:
    """The digest of all indexes and prompt masks, of the ends of all tokens, of blend and split.

    Raises:
        InvalidDataset: a file cannot be read.
    """
    found = xxhash.xxh3_128(repr((data.split, data.document_mask)).encode())
    try:
        for corpus in data.blend:
            found.update(repr(corpus.weight).encode())
            _add(found, Path(f"{corpus.path}.idx"), None)
            _add(found, Path(f"{corpus.path}.bin"), END_BYTES)
            if (mask := Path(f"{corpus.path}.mask")).exists():  # it decides the labels
                _add(found, mask, None)
    except OSError as error:
        raise InvalidDataset(
            f"{error.filename} cannot be read: {(error.strerror or str(error)).lower()}",
            code="Unreadable",
        ) from None
    return found.hexdigest()


def _add(found: xxhash.xxh3_128, path: Path, ends: int | None) -> None:
    size = path.stat().st_size
    found.update(size.to_bytes(8, "little"))
    with path.open("rb") as opened:
        if ends is not None and size > 2 * ends:
            found.update(opened.read(ends))
            opened.seek(size - ends)
        while chunk := opened.read(CHUNK_BYTES):
            found.update(chunk)
