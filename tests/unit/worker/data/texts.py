"""Pairs for the tests of data: tokens and documents, written as Megatron does."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from worker.data.index import write_index
from worker.training_settings import Corpus, DataSpec


def write_pair(prefix, documents, dtype=np.uint16, mask=None) -> str:
    """A pair of these documents, lists of tokens; `mask` has one number a token."""
    tokens = [token for document in documents for token in document]
    Path(f"{prefix}.bin").write_bytes(np.array(tokens, dtype=dtype).tobytes())
    if mask is not None:
        Path(f"{prefix}.mask").write_bytes(bytes(mask))
    with Path(f"{prefix}.idx").open("wb") as file:
        lengths = np.array([len(document) for document in documents], dtype=np.int32)
        write_index(file, lengths, np.dtype(dtype))
    return str(prefix)


def of(*prefixes, weights=None, **rest) -> DataSpec:
    """What is read of these pairs, with equal weights unless others are given."""
    weights = weights or [1.0] * len(prefixes)
    pairs = zip(prefixes, weights, strict=True)
    blend = tuple(Corpus(path=str(prefix), weight=weight) for prefix, weight in pairs)
    return DataSpec(blend=blend, **rest)
