"""Samples in an order that only seed and sample id decide; what does not fit gets one sentence."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tests.unit.worker.data.texts import of, write_pair
from worker.data.dataset import Dataset, part_bounds
from worker.errors import InvalidDataset
from worker.training_settings import IGNORED

TEXT = list(range(32, 127)) * 4  # 380 tokens that differ from their neighbours


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", [TEXT])


@pytest.fixture
def documents(tmp_path):
    """100 documents of 7 tokens, each token its document's number."""
    return write_pair(tmp_path / "documents", [[document] * 7 for document in range(100)])


def test_samples_are_the_text_cut_with_one_token_of_overlap(prefix):
    dataset = Dataset(of(prefix), 10)
    assert dataset.samples == 37
    found = {tuple(dataset.sample(1, i).tokens) for i in range(dataset.samples)}
    assert found == {tuple(TEXT[start : start + 11]) for start in range(0, 370, 10)}


def test_a_sample_depends_on_nothing_read_before(prefix):
    forward, backward = Dataset(of(prefix), 10), Dataset(of(prefix), 10)
    one = {i: forward.sample(3, i).tokens.tolist() for i in range(100)}
    other = {i: backward.sample(3, i).tokens.tolist() for i in reversed(range(100))}
    assert one == other


def test_every_sample_is_read_once_in_each_pass(prefix):
    dataset = Dataset(of(prefix), 10)
    for data_epoch in range(3):
        ids = range(data_epoch * 37, (data_epoch + 1) * 37)
        assert {dataset.place(5, i).start for i in ids} == set(range(0, 370, 10))


def test_a_blend_reads_each_corpus_by_its_weight_and_each_of_its_samples_once(prefix, tmp_path):
    other = write_pair(tmp_path / "other", [[9] * 101])
    dataset = Dataset(of(prefix, other, weights=[3, 1]), 10)
    places = [dataset.place(1, i) for i in range(40)]
    assert Counter(place.corpus for place in places) == {0: 30, 1: 10}
    assert len(set(places)) == 40
    assert dataset.samples == 47


@pytest.mark.parametrize(
    ("split", "bounds"),
    [
        ((1, 0, 0), ((0, 100), (100, 100), (100, 100))),
        ((98, 1, 1), ((0, 98), (98, 99), (99, 100))),
        ((969, 30, 1), ((0, 97), (97, 100), (100, 100))),
        ((0.5, 0.25, 0.25), ((0, 50), (50, 75), (75, 100))),
    ],
)
def test_the_split_is_that_of_megatron(split, bounds):
    assert part_bounds(split, 100) == bounds


@given(st.tuples(*[st.floats(0, 1e3)] * 3).filter(any), st.integers(0, 10**6))
def test_the_parts_of_a_split_hold_every_document_once(split, documents):
    (start, one), (two, three), (four, end) = part_bounds(split, documents)
    assert (start, end) == (0, documents)
    assert one == two <= three == four
    assert one >= 0


def test_no_document_is_in_two_parts(documents):
    spec = of(documents, split=(8, 1, 1))
    seen = {}
    for part in ("training", "held-out"):
        dataset = Dataset(spec, 3, part=part)
        seen[part] = {
            int(token) for i in range(dataset.samples) for token in dataset.sample(1, i).tokens
        }
    assert seen["training"] == set(range(80))
    assert seen["held-out"] == set(range(80, 90))


def test_a_split_that_leaves_nothing_gets_one_sentence(documents):
    with pytest.raises(InvalidDataset) as refused:
        Dataset(of(documents, split=(99.9, 0.1, 0)), 3, part="held-out")
    assert str(refused.value) == (
        f"dataset {documents!r} has 0 tokens in the held-out part of its split, one sample of "
        "sequence length 3 needs 4; give more text, another split or a shorter sequence"
    )


def test_a_dataset_shorter_than_one_sample_is_refused(prefix):
    assert Dataset(of(prefix), 379).samples == 1
    with refused(InvalidDataset, "OutOfRange"):
        Dataset(of(prefix), 380)


def test_a_token_beyond_the_vocabulary_is_refused(prefix):
    dataset = Dataset(of(prefix), 379, vocab=126)
    with pytest.raises(InvalidDataset) as refused:
        dataset.sample(1, 7)
    assert str(refused.value) == (
        f"sample 7 of dataset {prefix!r} has token 126, the model's vocabulary ends at 125; "
        "prepare the data with the model's tokenizer"
    )
    assert len(Dataset(of(prefix), 379, vocab=127).sample(1, 0).tokens) == 380


def test_a_tokenizer_that_is_larger_than_the_model_is_refused_before_a_token_is_read(prefix):
    Path(f"{prefix}.json").write_text(json.dumps({"vocab": 50257}))
    assert Dataset(of(prefix), 10, vocab=50257).samples == 37
    with refused(InvalidDataset, "Mismatch"):
        Dataset(of(prefix), 10, vocab=50256)


def test_a_masked_token_is_no_label(tmp_path):
    mask = [int(token % 3 > 0) for token in range(41)]
    dataset = Dataset(of(write_pair(tmp_path / "pairs", [list(range(41))], mask=mask)), 10)
    for i in range(4):
        sample = dataset.sample(1, i)
        expected = [token if token % 3 else IGNORED for token in sample.tokens[1:].tolist()]
        assert sample.labels.tolist() == expected
        assert dataset.count_labels(1, i, i + 1) == sum(label != IGNORED for label in expected)
    assert dataset.is_masked
    assert dataset.count_labels(1, 0, 4) == int(np.count_nonzero(mask[1:]))


@pytest.mark.parametrize("has_prompts", [False, True])
def test_with_a_document_mask_the_first_token_of_a_document_is_no_label(tmp_path, has_prompts):
    texts = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9], [10, 11], list(range(12, 32))]
    tokens = [token for text in texts for token in text]
    mask = [int(token % 3 > 0) for token in tokens] if has_prompts else None
    prefix = write_pair(tmp_path / "texts", texts, mask=mask)
    dataset = Dataset(of(prefix, document_mask=True), 10)
    begins = {text[0] for text in texts if text}
    left = [t for t in tokens[1:] if t not in begins and not (has_prompts and t % 3 == 0)]
    found = [dataset.sample(1, i).labels for i in range(3)]
    assert sorted(t for labels in found for t in labels if t != IGNORED) == left
    assert dataset.count_labels(1, 0, 3) == len(left)
    assert dataset.is_masked


def test_the_documents_of_a_sample_are_known_without_a_token(tmp_path):
    texts = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9], [10, 11], list(range(12, 32))]
    dataset = Dataset(of(write_pair(tmp_path / "texts", texts)), 10)
    by_start = {dataset.place(1, i).start: dataset.documents(1, i) for i in range(3)}
    assert by_start == {0: (3, 1, 5, 1), 10: (1, 9), 20: (10,)}


def test_a_part_without_a_label_is_refused(tmp_path):
    """Else it would train on nothing, with a loss of 0."""
    mask = [1] * 41 + [0] * 41
    prefix = write_pair(tmp_path / "pairs", [list(range(41))] * 2, mask=mask)
    assert Dataset(of(prefix, split=(1, 1, 0)), 10).samples
    with refused(InvalidDataset, "Missing"):
        Dataset(of(prefix, split=(1, 1, 0)), 10, part="held-out")


def test_where_nothing_is_masked_the_labels_are_the_next_tokens(prefix):
    dataset = Dataset(of(prefix), 10)
    sample = dataset.sample(1, 4)
    assert sample.labels.tolist() == sample.tokens[1:].tolist()
    assert dataset.count_labels(1, 3, 7) == 40


def test_so_many_samples_can_be_read_before_one_comes_twice(prefix, tmp_path):
    assert Dataset(of(prefix), 10).once(1000) == 37
    assert Dataset(of(prefix), 10).once(5) == 5
    short = write_pair(tmp_path / "short", [[9] * 21])
    blend = Dataset(of(prefix, short, weights=[3, 1]), 10)
    most = blend.once(1000)
    places = [blend.place(0, i) for i in range(most + 1)]
    assert len(set(places[:-1])) == most
    assert len(set(places)) == most
