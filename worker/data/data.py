"""Training samples from a Megatron indexed dataset, in an order that no plan can change.

The tokens of all documents form one stream, cut into samples of S + 1 tokens that overlap by one.
Which sample is trained where is a pure function of (seed, global sample id), with sample id = step
* B + place in the global batch: a rank reads its own run of it, and there is no cursor to move when
the plan changes.
Source: Megatron-Core's `indexed_dataset.py` (the format, version 1); the order is keyed like
Oobleck's sampler.
Legend: B global batch, S sequence length, b micro-batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from worker.errors import InvalidDataset

if TYPE_CHECKING:
    import torch

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
HEADER = struct.Struct("<9sQBQQ")  # magic, version, dtype code, sequences, document indices
_KEY_MASK = (1 << 64) - 1


class Dataset:
    """A .bin/.idx pair, read by memory map.

    Attributes:
        prefix: of the pair, without the suffix.
        sequence_length: S.
        samples: how many there are in one pass over the data.
    """

    def __init__(self, prefix: str, sequence_length: int, vocab: int | None = None) -> None:
        """Open the pair.

        Args:
            prefix: of the pair, without the suffix.
            sequence_length: S.
            vocab: if given, a token at or above it is an error when its sample is read.

        Raises:
            InvalidDataset: it is missing, unreadable, damaged or has fewer than S + 1 tokens.
        """
        self.prefix = prefix
        self.sequence_length = sequence_length
        self._vocab = vocab
        self._tokens = _open_tokens(prefix)
        self.samples = (len(self._tokens) - 1) // sequence_length
        if self.samples < 1:
            raise InvalidDataset(
                f"dataset {prefix!r} has {len(self._tokens)} tokens, one sample of sequence "
                f"length {sequence_length} needs {sequence_length + 1}; "
                "give more text or a shorter sequence"
            )
        self._order: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

    def sample(self, seed: int, sample_id: int) -> npt.NDArray[np.int64]:
        """Tokens of one sample, [S + 1]: inputs are all but the last, labels all but the first.

        Args:
            seed: of the job.
            sample_id: counts samples from the first step on; beyond one pass the data is shuffled
                anew.

        Raises:
            InvalidDataset: a token does not fit the vocabulary.
        """
        data_epoch, place = divmod(sample_id, self.samples)
        start = int(self._shuffled(seed, data_epoch)[place]) * self.sequence_length
        tokens = self._tokens[start : start + self.sequence_length + 1].astype(np.int64)
        if self._vocab is not None and not 0 <= tokens.min() <= tokens.max() < self._vocab:
            found = tokens[(tokens < 0) | (tokens >= self._vocab)][0]
            raise InvalidDataset(
                f"sample {sample_id} of dataset {self.prefix!r} has token {found}, "
                f"the model's vocabulary ends at {self._vocab - 1}; "
                "prepare the data with the model's tokenizer"
            )
        return tokens

    def _shuffled(self, seed: int, data_epoch: int) -> npt.NDArray[np.int64]:
        """The order of all samples in one pass; the last one asked for is kept."""
        key = (seed, data_epoch)
        if self._order is None or self._order[0] != key:
            self._order = (key, sample_order(seed, data_epoch, self.samples))
        return self._order[1]


def sample_order(seed: int, data_epoch: int, samples: int) -> npt.NDArray[np.int64]:
    """A permutation of all samples, keyed by (seed, pass over the data), [samples].

    It sorts the raw words of Philox, a stream that numpy promises never to change, unlike those of
    `Generator`.
    """
    bits = np.random.Philox(key=np.array([seed & _KEY_MASK, data_epoch], dtype=np.uint64))
    return np.argsort(bits.random_raw(samples), kind="stable").astype(np.int64)


def micro_batches(
    dataset: Dataset,
    seed: int,
    step: int,
    global_batch: int,
    first_sample: int,
    num_micro_batches: int,
    micro_batch: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The micro-batches of one replica in one step.

    Args:
        dataset: to read from.
        seed: of the job.
        step: index of the step, from 0.
        global_batch: B.
        first_sample: where this replica's run of the global batch starts.
        num_micro_batches: M_r.
        micro_batch: b.

    Yields:
        (tokens, labels), int64 tensors [b, S] each.
    """
    import torch  # not above: a pod makes its dataset before it needs torch, which takes seconds

    first = step * global_batch + first_sample
    for index in range(num_micro_batches):
        ids = range(first + index * micro_batch, first + (index + 1) * micro_batch)
        rows = torch.from_numpy(np.stack([dataset.sample(seed, sample_id) for sample_id in ids]))
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _open_tokens(prefix: str) -> npt.NDArray[np.generic]:
    """All tokens of a pair as one array over its memory map."""
    index, tokens = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    try:
        content = index.read_bytes()
        stored_bytes = tokens.stat().st_size
    except OSError as error:
        raise InvalidDataset(
            f"dataset {prefix!r} cannot be read: {error.filename} "
            f"{(error.strerror or '').lower()}; `heddle data prepare` makes a .bin/.idx pair"
        ) from None
    dtype, sizes, pointers = _read_index(prefix, content)
    stated_bytes = int(sizes.sum(dtype=np.int64)) * dtype.itemsize
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)[:-1]]) * dtype.itemsize
    if len(sizes) and not np.array_equal(pointers, starts):
        raise InvalidDataset(
            f"dataset {prefix!r} does not keep its documents in one run; prepare it again"
        )
    if stored_bytes != stated_bytes:
        raise InvalidDataset(
            f"dataset {prefix!r} is damaged: its .bin has {stored_bytes} bytes, "
            f"its .idx states {stated_bytes}; prepare it again"
        )
    if not stored_bytes:
        return np.zeros(0, dtype=dtype)
    try:
        return np.memmap(tokens, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise InvalidDataset(f"dataset {prefix!r} cannot be read: {error}") from None


def _read_index(
    prefix: str, content: bytes
) -> tuple[np.dtype[np.generic], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Token type, tokens of each document, and where each starts in the .bin, in bytes."""
    if len(content) < HEADER.size or not content.startswith(MAGIC):
        raise InvalidDataset(
            f"dataset {prefix!r} has an .idx that is not a Megatron index; "
            "`heddle data prepare` makes one"
        )
    _, version, code, sequences, documents = HEADER.unpack_from(content)
    if version != VERSION or code not in DTYPES:
        raise InvalidDataset(
            f"dataset {prefix!r} has index version {version} and token type {code}; "
            f"supported are version {VERSION} and the integer types {', '.join(map(str, DTYPES))}"
        )
    expected = HEADER.size + sequences * (4 + 8) + documents * 8
    if len(content) < expected:
        raise InvalidDataset(
            f"dataset {prefix!r} has an .idx of {len(content)} bytes, "
            f"its header states {expected}; it was cut off, prepare it again"
        )
    sizes = np.frombuffer(content, dtype="<i4", count=sequences, offset=HEADER.size)
    after_sizes = HEADER.size + sizes.nbytes
    pointers = np.frombuffer(content, dtype="<i8", count=sequences, offset=after_sizes)
    return np.dtype(DTYPES[code]).newbyteorder("<"), sizes, pointers
