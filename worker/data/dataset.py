"""Training samples from Megatron pairs, in an order that no plan can change.

The documents of a corpus that belong to one part of the split form one stream of tokens, cut into
samples of S + 1 tokens that overlap by one.  Which sample is trained where is a pure function of
(seed, global sample id), with sample id = step * B + place in the global batch: the blend gives the
corpus and how manieth of its samples it is, the permutation which one.  A rank reads its own run of
ids, and there is no cursor to move when the plan changes.
Source: Megatron-Core's `GPTDataset` (the stream, the split by documents); the order is keyed like
Oobleck's sampler.
Legend: B global batch, S sequence length.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.wording import counted
from worker.data.blend import Blend
from worker.data.corpus import IndexedCorpus, open_pair
from worker.data.order import Permutation
from worker.errors import InvalidDataset
from worker.training_settings import IGNORED, DataSpec

Part = Literal["training", "held-out"]
_AT_ONCE = 1 << 20  # bytes of a mask
PARTS: tuple[Part, ...] = ("training", "held-out")  # as the split has them; nothing reads the test


class Place(NamedTuple):
    """Where a sample is: which corpus of the blend, and its first token there."""

    corpus: int
    start: int


class Sample(NamedTuple):
    """One sample.

    Attributes:
        tokens: int64 [S + 1]: inputs are all but the last, labels all but the first.
        labels: int64 [S], IGNORED where nothing is to be learnt.
    """

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


class _Stream(NamedTuple):
    """One corpus's documents of a part: where they start, in tokens, and their samples."""

    corpus: IndexedCorpus
    first: int
    samples: int


class Dataset:
    """One part of a blend, opened.

    Attributes:
        sequence_length: S.
        samples: of one pass over all corpora.
        is_masked: whether some tokens are no labels.
        masks_documents: whether each document of a sample is computed as if it were alone; then
            its first token is no label, because nothing before it is its own.
    """

    def __init__(
        self,
        spec: DataSpec,
        sequence_length: int,
        vocab: int | None = None,
        part: Part = "training",
    ) -> None:
        """Open all pairs; no token is read, and of a mask no more than the first label.

        Args:
            spec: which pairs, with which weights and split.
            sequence_length: S.
            vocab: if given, a token at or above it is an error when its sample is read.
            part: of the split.

        Raises:
            InvalidDataset: a pair is missing, unreadable, damaged, of another tokenizer, or its
                part has fewer than S + 1 tokens, or no label.
        """
        self.sequence_length = sequence_length
        self._vocab = vocab
        self._part: Part = part
        self._blend = Blend([corpus.weight for corpus in spec.blend])
        self._streams = tuple(self._open(corpus.path, spec) for corpus in spec.blend)
        self._orders: dict[tuple[int, int, int], Permutation] = {}
        self.samples = sum(stream.samples for stream in self._streams)
        self.masks_documents = spec.document_mask
        has_prompts = any(stream.corpus.mask is not None for stream in self._streams)
        self.is_masked = self.masks_documents or has_prompts

    def place(self, seed: int, sample_id: int) -> Place:
        """Where a sample is.

        Args:
            seed: of the job.
            sample_id: counts samples from the first step on; a corpus whose samples are all read
                is shuffled anew.
        """
        corpus, index = self._blend.place(sample_id)
        stream = self._streams[corpus]
        data_epoch, place = divmod(index, stream.samples)
        found = self._order(seed, corpus, data_epoch)(place)
        return Place(corpus, stream.first + found * self.sequence_length)

    def sample(self, seed: int, sample_id: int) -> Sample:
        """One sample; see `place`.

        Raises:
            InvalidDataset: a token does not fit the vocabulary.
        """
        place = self.place(seed, sample_id)
        corpus = self._streams[place.corpus].corpus
        stop = place.start + self.sequence_length + 1
        tokens = corpus.tokens[place.start : stop].astype(np.int64)
        if self._vocab is not None and not 0 <= tokens.min() <= tokens.max() < self._vocab:
            found = tokens[(tokens < 0) | (tokens >= self._vocab)][0]
            raise InvalidDataset(
                f"sample {sample_id} of dataset {corpus.prefix!r} has token {found}, "
                f"the model's vocabulary ends at {self._vocab - 1}; "
                "prepare the data with the model's tokenizer",
                code="Mismatch",
            )
        labels = tokens[1:]
        learnt = self._learnt(place)
        return Sample(tokens, labels if learnt is None else np.where(learnt, labels, IGNORED))

    def documents(self, seed: int, sample_id: int) -> tuple[int, ...]:
        """How many tokens of each document a sample has, in order; together S.

        Read from the index alone, so that a stage that needs no token reads none.
        """
        place = self.place(seed, sample_id)
        stop = place.start + self.sequence_length
        inner = self._streams[place.corpus].corpus.boundaries(place.start + 1, stop)
        return tuple(end - start for start, end in pairwise((place.start, *inner, stop)))

    def count_labels(self, seed: int, first: int, stop: int) -> int:
        """How many labels the samples from `first` on, before `stop`, are trained on."""
        if not self.is_masked:
            return (stop - first) * self.sequence_length
        return sum(self._labels_of(self.place(seed, sample_id)) for sample_id in range(first, stop))

    def once(self, samples: int) -> int:
        """The largest number up to `samples` of first samples among which none comes twice."""
        low, high = 0, samples
        while low < high:
            middle = (low + high + 1) // 2
            if all(
                self._blend.count(index, middle) <= stream.samples
                for index, stream in enumerate(self._streams)
            ):
                low = middle
            else:
                high = middle - 1
        return low

    def _labels_of(self, place: Place) -> int:
        learnt = self._learnt(place)
        return self.sequence_length if learnt is None else int(np.count_nonzero(learnt))

    def _learnt(self, place: Place) -> npt.NDArray[np.bool_] | None:
        """Which labels of a sample are learnt, [S]; None: all."""
        corpus = self._streams[place.corpus].corpus
        first, stop = place.start + 1, place.start + self.sequence_length + 1
        if corpus.mask is None and not self.masks_documents:
            return None
        if corpus.mask is None:
            learnt = np.ones(stop - first, dtype=np.bool_)
        else:
            learnt = corpus.mask[first:stop] != 0
        if self.masks_documents:
            learnt[[begin - first for begin in corpus.boundaries(first, stop)]] = False
        return learnt

    def _order(self, seed: int, corpus: int, data_epoch: int) -> Permutation:
        """The permutation of one pass over a corpus; those asked for last are kept."""
        key = (seed, corpus, data_epoch)
        found = self._orders.get(key)  # once: another thread may read the same dataset
        if found is None:
            stream = corpus * len(PARTS) + PARTS.index(self._part)
            found = Permutation(self._streams[corpus].samples, seed, stream, data_epoch)
            if len(self._orders) > 2 * len(self._streams):
                self._orders.clear()
            self._orders[key] = found
        return found

    def _open(self, prefix: str, spec: DataSpec) -> _Stream:
        corpus = open_pair(prefix, spec, self._vocab)
        low, high = part_bounds(spec.split, corpus.index.documents)[PARTS.index(self._part)]
        first, stop = corpus.index.first_token(low), corpus.index.first_token(high)
        samples = (stop - first - 1) // self.sequence_length
        if samples < 1:
            whole = high - low == corpus.index.documents
            where = "" if whole else f" in the {self._part} part of its split"
            raise InvalidDataset(
                f"dataset {prefix!r} has {counted(stop - first, 'token')}{where}, one sample of "
                f"sequence length {self.sequence_length} needs {self.sequence_length + 1}; "
                f"give more text{'' if whole else ', another split'} or a shorter sequence",
                code="OutOfRange",
            )
        labels = None if corpus.mask is None else corpus.mask[first + 1 : stop]
        if labels is not None and not any(
            labels[start : start + _AT_ONCE].any() for start in range(0, len(labels), _AT_ONCE)
        ):
            raise InvalidDataset(
                f"dataset {prefix!r} has no label in the {self._part} part of its split: its mask "
                "leaves all tokens out; prepare it with completions that are not empty",
                code="Missing",
            )
        return _Stream(corpus, first, samples)


def part_bounds(
    split: tuple[float, float, float], documents: int
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """(first document, document after the last) of each part, as Megatron rounds them."""
    total = sum(split)
    one, two, three = (round(upto / total * documents) for upto in accumulate(split))
    return (0, one), (one, two), (two, three)
