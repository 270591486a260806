"""The tokens of one Megatron pair by memory map, with what lies beside them.

PREFIX.bin, PREFIX.idx   tokens and where documents start: Megatron's
PREFIX.mask              one byte a token: 0 where it is no label (a prompt); only where needed
PREFIX.json              what `heddle data prepare` noted; data of others has none
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.data.index import read_index, unreadable
from worker.data.making.tokenizing import digest_of
from worker.errors import InvalidDataset
from worker.training_settings import DataSpec


class IndexedCorpus:
    """A .bin/.idx pair, opened.

    Attributes:
        prefix: of the pair, without the suffix.
        index: where its documents are.
        tokens: of all documents in one run, [tokens].
        mask: 0 where a token is no label, uint8 [tokens]; None: each token is one.
        notes: what `heddle data prepare` noted, else empty.
    """

    def __init__(self, prefix: str) -> None:
        """Open the pair.

        Raises:
            InvalidDataset: it is missing, unreadable or damaged.
        """
        self.prefix = prefix
        self.index = read_index(prefix)
        self.tokens = self._map(".bin", self.index.dtype, self.index.end)
        mask = Path(f"{prefix}.mask").exists()
        self.mask: npt.NDArray[np.generic] | None = (
            self._map(".mask", np.dtype(np.uint8), len(self.tokens)) if mask else None
        )
        self.notes = self._read_notes()

    def boundaries(self, start: int, stop: int) -> list[int]:
        """Tokens from `start` on, before `stop`, that begin a document."""
        itemsize = self.index.dtype.itemsize
        starts = self.index.starts
        first = int(np.searchsorted(starts, start * itemsize, "left"))
        last = int(np.searchsorted(starts, stop * itemsize, "left"))
        return sorted({int(found) // itemsize for found in starts[first:last]})

    def _map(
        self, suffix: str, dtype: np.dtype[np.generic], stated_bytes: int
    ) -> npt.NDArray[np.generic]:
        path = Path(f"{self.prefix}{suffix}")
        try:
            stored_bytes = path.stat().st_size
            if stored_bytes != stated_bytes:
                raise InvalidDataset(
                    f"dataset {self.prefix!r} is damaged: its {suffix} has {stored_bytes} bytes, "
                    f"its .idx states {stated_bytes}; prepare it again",
                    code="Damaged",
                )
            if not stored_bytes:  # an empty map is an error of the system
                return np.zeros(0, dtype=dtype)
            return np.memmap(path, dtype=dtype, mode="r")
        except OSError as error:
            raise unreadable(self.prefix, error) from None

    def _read_notes(self) -> dict[str, Any]:
        try:
            notes = json.loads(Path(f"{self.prefix}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return notes if isinstance(notes, dict) else {}


def open_pair(prefix: str, spec: DataSpec, vocab: int | None) -> IndexedCorpus:
    """A pair of a job's data.

    Args:
        prefix: of the pair.
        spec: what the job says of its data.
        vocab: tokens of the model; None: unknown.

    Raises:
        InvalidDataset: it is missing, unreadable, damaged or of another tokenizer.
    """
    corpus = IndexedCorpus(prefix)
    noted = corpus.notes.get("tokenizer_sha256")
    if spec.tokenizer is not None and corpus.notes and noted != digest_of(Path(spec.tokenizer)):
        raise InvalidDataset(
            f"dataset {prefix!r} was prepared with another tokenizer than {spec.tokenizer!r}; "
            "name its tokenizer, or prepare it again",
            code="Mismatch",
        )
    tokens = corpus.notes.get("vocab")
    if vocab is not None and isinstance(tokens, int) and tokens > vocab:
        raise InvalidDataset(
            f"dataset {prefix!r} was prepared with a tokenizer of {tokens:,} tokens, "
            f"the model's vocabulary has {vocab:,}; "
            "prepare the data with the model's tokenizer",
            code="Mismatch",
        )
    return corpus


def check_pairs(spec: DataSpec, vocab: int) -> None:
    """Open all pairs of a job, and close them.

    Raises:
        InvalidDataset: see `open_pair`.
    """
    for corpus in spec.blend:
        open_pair(corpus.path, spec, vocab)
