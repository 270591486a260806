"""Content of a dataset: `heddle data show`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from planner.wording import counted
from worker.data.corpus import IndexedCorpus
from worker.data.making.tokenizing import NO_END, tokenization
from worker.errors import InvalidDataset

SHOWN_TOKENS = 60  # of a document: some lines of a terminal


class Beginning(NamedTuple):
    """The first tokens of a document.

    Attributes:
        tokens: of the whole document.
        first: of them.
        text: of the first ones; None: nobody said which tokenizer.
    """

    tokens: int
    first: tuple[int, ...]
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetContents:
    """Content of a dataset.

    Attributes:
        prefix: of the pair.
        documents: how many there are.
        tokens: of all documents.
        token_type: as numpy names it.
        longest: tokens of the longest document.
        learnt: share of the tokens that are labels.
        vocab: of the tokenizer it was prepared with; None: another program made it.
        end_of_document: the token behind each document, where it is known.
        beginnings: of the first documents.
    """

    prefix: str
    documents: int
    tokens: int
    token_type: str
    longest: int
    learnt: float
    vocab: int | None
    end_of_document: int | None
    beginnings: tuple[Beginning, ...]


def contents(prefix: str, tokenizer: Path | None = None, documents: int = 3) -> DatasetContents:
    """Content of the pair `prefix`, with the beginnings of so many documents.

    Raises:
        InvalidDataset: the pair is damaged, or the tokenizer is another than its own.
    """
    corpus = IndexedCorpus(prefix)
    index, notes = corpus.index, corpus.notes
    bounds = np.append(index.starts, index.end) // index.dtype.itemsize
    digest = notes.get("tokenizer_sha256")
    decode = None
    if tokenizer is not None:
        how = tokenization(tokenizer, NO_END)
        if notes and how.digest != digest:
            raise InvalidDataset(
                f"dataset {prefix!r} was prepared with another tokenizer than {str(tokenizer)!r}; "
                "name its tokenizer",
                code="Mismatch",
            )
        decode = how.decode
    elif notes and digest is None:
        decode = tokenization(None).decode
    beginnings = []
    for first, stop in pairwise(bounds[: documents + 1]):
        tokens = [int(t) for t in corpus.tokens[first : min(stop, first + SHOWN_TOKENS)]]
        text = None if decode is None else decode(tokens).removesuffix("\0")  # the end, of bytes
        beginnings.append(Beginning(int(stop - first), tuple(tokens), text))
    learnt = 1.0
    if corpus.mask is not None:
        learnt = np.count_nonzero(corpus.mask) / max(1, len(corpus.mask))
    return DatasetContents(
        prefix=prefix,
        documents=index.documents,
        tokens=len(corpus.tokens),
        token_type=index.dtype.name,
        longest=int(np.diff(bounds).max(initial=0)),
        learnt=learnt,
        vocab=notes.get("vocab"),
        end_of_document=notes.get("end_of_document"),
        beginnings=tuple(beginnings),
    )


def as_text(found: DatasetContents) -> str:
    """For people."""
    lines = [
        f"{found.prefix}: {counted(found.documents, 'document')}, "
        f"{counted(found.tokens, 'token')} ({found.token_type}), the longest document has "
        f"{found.longest:,}",
    ]
    if found.vocab is not None:
        end = "none" if found.end_of_document is None else str(found.end_of_document)
        lines.append(f"vocabulary {found.vocab:,}; token at the end of a document: {end}")
    if found.learnt < 1:
        lines.append(f"{found.learnt:.1%} of the tokens are labels, the rest are prompts")
    for number, beginning in enumerate(found.beginnings, start=1):
        text = beginning.text
        shown = " ".join(map(str, beginning.first)) if text is None else _printable(text)
        more = " ..." if beginning.tokens > len(beginning.first) else ""
        lines += ["", f"document {number}, {counted(beginning.tokens, 'token')}:", f"{shown}{more}"]
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Without the characters that a terminal obeys; only lines and tabs stay."""
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    )
