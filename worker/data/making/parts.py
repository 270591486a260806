"""Result of one unit of input, on disk, so that a killed command resumes from there.

    NAME.bin     tokens                 NAME.len   tokens of each document, i32
    NAME.mask    one byte a token, of pairs alone
    NAME.json    what it holds; written last, and its presence means that the part is whole

NAME is a digest of the unit, its files and the settings, so a part is never taken for another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from worker.data.index import MAX_DOCUMENT_TOKENS
from worker.data.making.readers import Document, Keys, Skipped, documents
from worker.data.making.tokenizing import Tokenization
from worker.data.making.units import Unit
from worker.errors import InvalidDataset

_UINT16_VOCAB = 1 << 16


class Part(NamedTuple):
    """One unit's part of the dataset.

    Attributes:
        documents: that are in it.
        skipped: files that could not be read or are not UTF-8 text.
        text_bytes: of all documents.
        tokens: of all documents.
        first_skipped: path of the first of those files; "" if there is none.
    """

    documents: int
    skipped: int
    text_bytes: int
    tokens: int
    first_skipped: str


class _Tokens(NamedTuple):
    tokens: npt.NDArray[np.generic]
    learnt: npt.NDArray[np.uint8]  # 0 where a token is part of a prompt
    text_bytes: int


def token_type(vocab: int) -> np.dtype[np.generic]:
    """The smallest type of Megatron's that holds the vocabulary."""
    return np.dtype(np.uint16 if vocab <= _UINT16_VOCAB else np.int32).newbyteorder("<")


def read_part(folder: Path, name: str) -> Part | None:
    """A part that is there and whole."""
    try:
        return Part(*json.loads((folder / f"{name}.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_part(
    folder: Path, name: str, unit: Unit, keys: Keys, how: Tokenization, max_bytes: int | None
) -> Part:
    """Read a unit and write its part.

    Args:
        folder: of all parts.
        name: of this one.
        unit: to read.
        keys: of its records.
        how: texts become tokens.
        max_bytes: stop after this much text; the last document is cut.

    Raises:
        InvalidDataset: a record is damaged, or a document too long.
    """
    dtype = token_type(how.vocab)
    lengths: list[int] = []
    text_bytes, skipped = 0, list[str]()
    masked = keys.prompt is not None
    with (
        (folder / f"{name}.bin").open("wb") as bin_file,
        (folder / f"{name}.mask").open("wb") as (mask_file),
    ):
        for document in documents(unit, keys):
            if max_bytes is not None and text_bytes >= max_bytes:
                break
            if isinstance(document, Skipped):
                skipped.append(document.path)
                continue
            left = None if max_bytes is None else max_bytes - text_bytes
            found = _tokens_of(document, how, left)
            if found is None:
                continue
            if len(found.tokens) > MAX_DOCUMENT_TOKENS:
                raise InvalidDataset(
                    f"a document of {unit.files[0]!r} has {len(found.tokens):,} tokens, at most "
                    f"{MAX_DOCUMENT_TOKENS:,} are possible; cut it",
                    code="OutOfRange",
                )
            bin_file.write(found.tokens.astype(dtype).tobytes())
            if masked:
                mask_file.write(found.learnt.tobytes())
            lengths.append(len(found.tokens))
            text_bytes += found.text_bytes
    (folder / f"{name}.len").write_bytes(np.array(lengths, dtype="<i4").tobytes())
    part = Part(
        documents=len(lengths),
        skipped=len(skipped),
        text_bytes=text_bytes,
        tokens=sum(lengths),
        first_skipped=skipped[0] if skipped else "",
    )
    draft = folder / f"{name}.draft"
    draft.write_text(json.dumps(part), encoding="utf-8")
    draft.replace(folder / f"{name}.json")
    return part


def lengths_of(folder: Path, names: list[str]) -> npt.NDArray[np.int32]:
    """Tokens of each document of these parts, in order."""
    found: Iterator[npt.NDArray[np.int32]] = (
        np.fromfile(folder / f"{name}.len", dtype="<i4") for name in names
    )
    return np.concatenate([np.zeros(0, dtype=np.int32), *found])


def _tokens_of(document: Document, how: Tokenization, max_bytes: int | None) -> _Tokens | None:
    """The tokens of a document with its end; None where it is empty."""
    text = document.text[:max_bytes]
    first = how.encode(text, True)
    rest = document.completion
    if rest is not None and max_bytes is not None:
        rest = rest[: max_bytes - len(text)]
    if len(first) and first[-1] == how.end:
        first = first[:-1]  # some tokenizers end each text by themselves
    second = how.encode(rest, False) if rest else first[:0]
    if not len(first) + len(second):
        return None
    end = np.array([] if how.end is None else [how.end], dtype=np.int64)
    tokens = np.concatenate([first, second, end])
    learnt = np.ones(len(tokens), dtype=np.uint8)
    if rest is not None:
        learnt[: len(first)] = 0
    return _Tokens(tokens, learnt, len(text) + len(rest or b""))
