"""The micro-batches of one replica in one step, and what each counts for.

The loss of a step is the mean over all labels of the global batch that are not IGNORED.  A
micro-batch's share of them is its weight, so the loss does not depend on how a plan cuts the batch.
Legend: B global batch, S sequence length, b micro-batch, M_r micro-batches of the replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from worker.data.dataset import Dataset

if TYPE_CHECKING:
    import torch


class MicroBatch(NamedTuple):
    """Input of one micro-batch.

    Attributes:
        tokens: int64 [b, S].
        labels: int64 [b, S], IGNORED where nothing is to be learnt.
        weight: its labels over those of the global batch; what its mean loss counts for.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    weight: float


def micro_batches(
    dataset: Dataset,
    seed: int,
    step: int,
    global_batch: int,
    first_sample: int,
    num_micro_batches: int,
    micro_batch: int,
) -> Iterator[MicroBatch]:
    """The micro-batches of one replica in one step.

    Args:
        dataset: to read from.
        seed: of the job.
        step: index of the step, from 0.
        global_batch: B.
        first_sample: where this replica's run of the global batch starts.
        num_micro_batches: M_r.
        micro_batch: b.
    """
    import torch  # not above: a pod makes its dataset before it needs torch, which takes seconds

    start = step * global_batch
    whole = max(1, dataset.count_labels(seed, start, start + global_batch))
    first = start + first_sample
    for index in range(num_micro_batches):
        ids = range(first + index * micro_batch, first + (index + 1) * micro_batch)
        samples = [dataset.sample(seed, sample_id) for sample_id in ids]
        tokens = torch.from_numpy(np.stack([sample.tokens[:-1] for sample in samples]))
        labels = torch.from_numpy(np.stack([sample.labels for sample in samples]))
        weight = dataset.count_labels(seed, ids.start, ids.stop) / whole
        yield MicroBatch(tokens, labels, weight)
