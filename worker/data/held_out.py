"""The samples that a model is evaluated on: the first ones of the held-out part, always the same.

Each replica evaluates its run of them; a last micro-batch that is not full is filled with rows
without labels.  Each label counts for one over all labels, so the sum over replicas is the mean
loss whatever the plan.
Legend: B global batch, S sequence length, b micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from worker.data.batches import MicroBatch
from worker.data.dataset import Dataset, Sample
from worker.training_settings import IGNORED, DataSpec

SAMPLES = 256  # unless the job says how many
SEED = 0  # of their order: jobs of different seeds are evaluated on the same samples


class HeldOut:
    """The held-out samples of a job.

    Attributes:
        samples: how many are evaluated: as many as asked for, or fewer, so that none comes twice.
    """

    def __init__(self, dataset: Dataset, samples: int) -> None:
        """`dataset` is the held-out part; at most so many of its samples are evaluated."""
        self._dataset = dataset
        self.samples = dataset.once(samples)
        self._labels: int | None = None

    @classmethod
    def of(
        cls, spec: DataSpec, sequence_length: int, vocab: int, samples: int | None = None
    ) -> HeldOut:
        """Those of a job's data, opened.

        Raises:
            InvalidDataset: see `Dataset`.
        """
        return cls(Dataset(spec, sequence_length, vocab, "held-out"), samples or SAMPLES)

    def run_of(self, first_sample: int, own_samples: int, global_batch: int) -> range:
        """Which samples a replica evaluates: its share of them is that of the global batch.

        Args:
            first_sample: where its run of the global batch starts.
            own_samples: of the global batch.
            global_batch: B.
        """
        return range(
            self.samples * first_sample // global_batch,
            self.samples * (first_sample + own_samples) // global_batch,
        )

    def micro_batches(self, run: range, micro_batch: int) -> Iterator[MicroBatch]:
        """These samples in micro-batches of b, the last one filled up."""
        import torch  # not above, see `batches`

        whole = self._count_labels()
        length = self._dataset.sequence_length
        empty = Sample(np.zeros(length + 1, dtype=np.int64), np.full(length, IGNORED))
        for first in range(run.start, run.stop, micro_batch):
            ids = range(first, min(run.stop, first + micro_batch))
            rows = [self._dataset.sample(SEED, sample_id) for sample_id in ids]
            rows += [empty] * (micro_batch - len(rows))
            tokens = torch.from_numpy(np.stack([row.tokens[:-1] for row in rows]))
            labels = torch.from_numpy(np.stack([row.labels for row in rows]))
            weight = self._dataset.count_labels(SEED, ids.start, ids.stop) / whole
            yield MicroBatch(tokens, labels, weight)

    def documents(self, run: range, micro_batch: int) -> Iterator[list[tuple[int, ...]]]:
        """Tokens of each document, row by row, of each of these micro-batches."""
        empty = (self._dataset.sequence_length,)
        for first in range(run.start, run.stop, micro_batch):
            ids = range(first, min(run.stop, first + micro_batch))
            rows = [self._dataset.documents(SEED, sample_id) for sample_id in ids]
            yield rows + [empty] * (micro_batch - len(rows))

    def _count_labels(self) -> int:
        """Of all samples; they stay the same."""
        if self._labels is None:
            self._labels = max(1, self._dataset.count_labels(SEED, 0, self.samples))
        return self._labels
