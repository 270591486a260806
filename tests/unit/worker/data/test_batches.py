"""The global batch, and what each of its labels counts for, do not depend on who reads it."""

from __future__ import annotations

import pytest
import torch

from tests.unit.worker.data.texts import of, write_pair
from worker.data.batches import micro_batches
from worker.data.dataset import Dataset
from worker.training_settings import IGNORED

TEXT = list(range(32, 127)) * 4
RUNS = pytest.mark.parametrize(
    "runs",
    [[(0, 1, 8)], [(0, 8, 1)], [(0, 2, 3), (6, 2, 1)], [(4, 1, 4), (0, 2, 2)]],
    ids=["one batch", "singles", "two unequal replicas", "replicas in another order"],
)


@RUNS
def test_the_global_batch_does_not_depend_on_who_reads_it(tmp_path, runs):
    dataset = Dataset(of(write_pair(tmp_path / "text", [TEXT])), 10)
    rows = {}
    for first, count, size in runs:
        read = list(micro_batches(dataset, 1, 5, 8, first, count, size))
        assert all(b.tokens.shape == b.labels.shape == (size, 10) for b in read)
        for place, row in enumerate(torch.cat([batch.tokens for batch in read])):
            rows[first + place] = row.tolist()
    expected = [dataset.sample(1, 5 * 8 + place).tokens[:-1].tolist() for place in range(8)]
    assert [rows[place] for place in range(8)] == expected


def test_labels_are_the_next_tokens(tmp_path):
    dataset = Dataset(of(write_pair(tmp_path / "text", [TEXT])), 10)
    ((tokens, labels, weight),) = micro_batches(dataset, 1, 0, 4, 0, 1, 4)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert tokens.dtype == labels.dtype == torch.int64
    assert weight == 1.0


@RUNS
def test_each_label_counts_the_same_whatever_micro_batch_it_is_in(tmp_path, runs):
    mask = [int(token % 7 > 2 or token > 300) for token in range(380)]
    dataset = Dataset(of(write_pair(tmp_path / "pairs", [TEXT], mask=mask)), 10)
    batches = [b for run in runs for b in micro_batches(dataset, 1, 5, 8, *run)]
    counts = [int((batch.labels != IGNORED).sum()) for batch in batches]
    assert [batch.weight for batch in batches] == [count / sum(counts) for count in counts]
    assert len(set(counts)) > 1 or len(counts) == 1


def test_a_step_without_labels_counts_for_nothing(tmp_path):
    mask = [0] * 379 + [1]  # a part without any label is refused
    dataset = Dataset(of(write_pair(tmp_path / "pairs", [TEXT], mask=mask)), 10)
    step = next(s for s in range(9) if not dataset.count_labels(1, 4 * s, 4 * s + 4))
    (batch,) = micro_batches(dataset, 1, step, 4, 0, 1, 4)
    assert batch.weight == 0.0
