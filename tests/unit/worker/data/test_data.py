"""Samples in an order that only seed and sample id decide; every bad dataset gets one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.data.data import Dataset, micro_batches, sample_order
from worker.data.prepare import prepare
from worker.errors import InvalidDataset

TEXT = bytes(range(32, 127)) * 4  # 380 bytes that differ from their neighbours


@pytest.fixture
def prefix(tmp_path):
    source = tmp_path / "text.txt"
    source.write_bytes(TEXT)
    prepare([source], tmp_path / "corpus")
    return str(tmp_path / "corpus")


def test_samples_are_the_text_cut_with_one_token_of_overlap(prefix):
    dataset = Dataset(prefix, 10)
    assert dataset.samples == 37
    found = {bytes(dataset.sample(1, i).astype(np.uint8)) for i in range(dataset.samples)}
    assert found == {TEXT[start : start + 11] for start in range(0, 370, 10)}


@given(st.integers(0, 2**40), st.integers(0, 5), st.integers(1, 300))
def test_every_sample_is_read_once_in_each_pass(seed, data_epoch, samples):
    assert sorted(sample_order(seed, data_epoch, samples)) == list(range(samples))


def test_the_order_differs_between_seeds_and_between_passes():
    orders = {tuple(sample_order(seed, epoch, 50)) for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders) == 4


def test_the_order_is_the_same_on_every_machine_and_version():
    """Written down once; if it changes, the loss curves of all jobs change."""
    assert sample_order(1, 0, 8).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]


def test_a_sample_depends_on_nothing_read_before(prefix):
    forward, backward = Dataset(prefix, 10), Dataset(prefix, 10)
    ids = range(100)
    one = {i: forward.sample(3, i).tolist() for i in ids}
    other = {i: backward.sample(3, i).tolist() for i in reversed(ids)}
    assert one == other


@pytest.mark.parametrize(
    "runs",
    [[(0, 1, 8)], [(0, 8, 1)], [(0, 2, 3), (6, 2, 1)], [(4, 1, 4), (0, 2, 2)]],
    ids=["one batch", "singles", "two unequal replicas", "replicas in another order"],
)
def test_the_global_batch_does_not_depend_on_who_reads_it(prefix, runs):
    dataset = Dataset(prefix, 10)
    rows = {}
    for first, count, size in runs:
        read = list(micro_batches(dataset, 1, 5, 8, first, count, size))
        assert all(tokens.shape == labels.shape == (size, 10) for tokens, labels in read)
        for place, row in enumerate(torch.cat([tokens for tokens, _ in read])):
            rows[first + place] = row.tolist()
    expected = [dataset.sample(1, 5 * 8 + place)[:-1].tolist() for place in range(8)]
    assert [rows[place] for place in range(8)] == expected


def test_labels_are_the_next_tokens(prefix):
    ((tokens, labels),) = micro_batches(Dataset(prefix, 10), 1, 0, 4, 0, 1, 4)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert tokens.dtype == labels.dtype == torch.int64


def cut_bin(prefix):
    with Path(f"{prefix}.bin").open("r+b") as file:
        file.truncate(100)


def cut_index(prefix):
    with Path(f"{prefix}.idx").open("r+b") as file:
        file.truncate(40)


def cut_index_header(prefix):
    with Path(f"{prefix}.idx").open("r+b") as file:
        file.truncate(12)


def overwrite_index(prefix):
    Path(f"{prefix}.idx").write_bytes(b"not an index at all, only text of some length")


def remove_bin(prefix):
    Path(f"{prefix}.bin").unlink()


def remove_index(prefix):
    Path(f"{prefix}.idx").unlink()


def another_version(prefix):
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    content[9:17] = struct.pack("<Q", 2)
    Path(f"{prefix}.idx").write_bytes(content)


def floating_tokens(prefix):
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    content[17] = 7
    Path(f"{prefix}.idx").write_bytes(content)


def scatter_documents(prefix):
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    content[-24:-16] = struct.pack("<q", 8)  # the one pointer
    Path(f"{prefix}.idx").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut_bin, "its .bin has 100 bytes, its .idx states 760"),
        (cut_index, "has an .idx of 40 bytes, its header states"),
        (cut_index_header, "is not a Megatron index"),
        (overwrite_index, "is not a Megatron index"),
        (remove_bin, "no such file or directory; `heddle data prepare`"),
        (remove_index, "no such file or directory; `heddle data prepare`"),
        (another_version, "index version 2"),
        (floating_tokens, "token type 7"),
        (scatter_documents, "documents in one run"),
    ],
)
def test_a_damaged_dataset_gets_one_sentence(prefix, damage, sentence):
    damage(prefix)
    with pytest.raises(InvalidDataset, match=sentence) as caught:
        Dataset(prefix, 10)
    assert "\n" not in str(caught.value)


def test_a_dataset_shorter_than_one_sample_is_refused(prefix):
    assert Dataset(prefix, 379).samples == 1
    with pytest.raises(InvalidDataset, match=r"has 380 tokens, one sample .* needs 381"):
        Dataset(prefix, 380)


def test_a_token_beyond_the_vocabulary_is_refused(prefix):
    dataset = Dataset(prefix, 379, vocab=126)
    with pytest.raises(InvalidDataset) as refused:
        dataset.sample(1, 7)
    assert str(refused.value) == (
        f"sample 7 of dataset {prefix!r} has token 126, the model's vocabulary ends at 125; "
        "prepare the data with the model's tokenizer"
    )
    assert len(Dataset(prefix, 379, vocab=127).sample(1, 0)) == 380
