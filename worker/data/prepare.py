"""Make a Megatron .bin/.idx pair from text: `heddle data prepare`.

One document per file, files in sorted order, so that the same text always gives the same pair.
Without a tokenizer the bytes of the text are the tokens (vocabulary 256), which needs nothing and
fits a model of any language.
Source: Megatron-Core's `indexed_dataset.py` (the format, version 1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from planner.wording import counted
from worker.data.index import write_index
from worker.errors import InvalidDataset

TEXT_SUFFIXES = (
    ".md",
    ".py",
    ".rst",
    ".txt",
)  # taken from folders; a file that is named is always taken
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")  # their syntax is no text to train on
BYTE_VOCAB = 256
_UINT16_VOCAB = 1 << 16
Encode = Callable[[bytes], npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class PreparedDataset:
    """What was written.

    Attributes:
        prefix: of the pair.
        documents: files that are in it.
        skipped: files that could not be read or are not UTF-8 text.
        text_bytes: of all documents.
        tokens: of all documents.
        vocab: size of the tokenizer's vocabulary.
    """

    prefix: str
    documents: int
    skipped: int
    text_bytes: int
    tokens: int
    vocab: int

    def __str__(self) -> str:
        text = (
            f"wrote {self.prefix}.bin and .idx: {counted(self.documents, 'document')}, "
            f"{self.text_bytes:,} bytes of text, {self.tokens:,} tokens "
            f"of a vocabulary of {self.vocab:,}"
        )
        return (
            f"{text}; skipped {counted(self.skipped, 'unreadable or binary file')}"
            if self.skipped
            else text
        )


def prepare(
    inputs: Sequence[Path],
    output: Path,
    max_bytes: int | None = None,
    tokenizer: Path | None = None,
) -> PreparedDataset:
    """Write a dataset from files and folders.

    An older pair of that name is replaced when all is written.

    Args:
        inputs: files, and folders whose text files are taken in sorted order.
        output: prefix of the pair.
        max_bytes: stop after this much text; the last document is cut.
        tokenizer: a tokenizer.json of the `tokenizers` library; bytes are the tokens without it.

    Raises:
        InvalidDataset: an input is missing or JSON, nothing in them is text, or the output cannot
            be written.
    """
    encode, vocab = _byte_encoding() if tokenizer is None else _file_encoding(tokenizer)
    dtype = np.dtype(np.uint16 if vocab <= _UINT16_VOCAB else np.int32).newbyteorder("<")
    sizes: list[int] = []
    skipped = text_bytes = 0
    with _replacing(output, ".bin") as tokens_file:
        for path in _files(inputs):
            if max_bytes is not None and text_bytes >= max_bytes:
                break
            text = _read_text(path)
            if text is None:
                skipped += 1
                continue
            text = text if max_bytes is None else text[: max_bytes - text_bytes]
            tokens = encode(text)
            if not len(tokens):
                continue
            tokens_file.write(tokens.astype(dtype).tobytes())
            sizes.append(len(tokens))
            text_bytes += len(text)
        if not sizes:
            raise InvalidDataset(
                f"there is no text in {', '.join(map(str, inputs))}; name text files, or "
                f"folders of {', '.join(TEXT_SUFFIXES)} files"
            )
        with _replacing(output, ".idx") as index_file:
            write_index(index_file, np.array(sizes, dtype=np.int32), dtype)
    return PreparedDataset(str(output), len(sizes), skipped, text_bytes, sum(sizes), vocab)


def _files(inputs: Iterable[Path]) -> Iterator[Path]:
    """All files to read, each once: in the order of the inputs, sorted within a folder."""
    seen: set[Path] = set()
    for given in inputs:
        if not given.exists():
            raise InvalidDataset(f"input {str(given)!r} does not exist; name text files or folders")
        if given.suffix.lower() in JSON_SUFFIXES and not given.is_dir():
            raise InvalidDataset(
                f"input {str(given)!r} is JSON, whose brackets and keys would be trained on; "
                "write the texts themselves into text files"
            )
        for path in _text_files(given) if given.is_dir() else (given,):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def _text_files(folder: Path) -> list[Path]:
    found = [
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(TEXT_SUFFIXES)
    ]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _read_text(path: Path) -> bytes | None:
    """The bytes of a UTF-8 text; None if it cannot be read or is something else."""
    try:
        text = path.read_bytes()
        text.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if b"\0" in text else text


def _byte_encoding() -> tuple[Encode, int]:
    return lambda text: np.frombuffer(text, dtype=np.uint8), BYTE_VOCAB


def _file_encoding(path: Path) -> tuple[Encode, int]:
    from tokenizers import Tokenizer  # bytes need none of it

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for all of its errors
        raise InvalidDataset(
            f"tokenizer {str(path)!r} cannot be read: {error}; "
            "give a tokenizer.json of the tokenizers library"
        ) from None

    def encode(text: bytes) -> npt.NDArray[np.generic]:
        return np.array(tokenizer.encode(text.decode(errors="ignore")).ids, dtype=np.int64)

    return encode, tokenizer.get_vocab_size()


@contextmanager
def _replacing(prefix: Path, suffix: str) -> Iterator[BinaryIO]:
    """A file that takes its name only when all of it is written."""
    final = Path(f"{prefix}{suffix}")
    draft = Path(f"{prefix}{suffix}.part")
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            yield file
        draft.replace(final)
    except OSError as error:
        raise InvalidDataset(
            f"cannot write {str(final)!r}: {(error.strerror or str(error)).lower()}; "
            "choose another output"
        ) from None
    finally:
        with suppress(OSError):  # it has its name by now, or never came to be
            draft.unlink()
