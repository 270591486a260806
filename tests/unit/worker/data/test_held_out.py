"""What is evaluated does not depend on the plan, and no sample comes twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tests.unit.worker.data.texts import of, write_pair
from worker.contract import TrainingSpec
from worker.data.dataset import Dataset
from worker.data.held_out import SEED, HeldOut
from worker.errors import InvalidDataset
from worker.training_settings import IGNORED


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    documents = [[document % 97 + 1] * (document % 13 + 2) for document in range(200)]
    mask = [int(place % 5 > 1) for place in range(sum(map(len, documents)))]
    prefix = write_pair(folder / "text", documents, mask=mask)
    return Dataset(of(prefix, split=(5, 5, 0)), 8, part="held-out")


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(1, 60),
)
def test_every_sample_is_evaluated_once_whatever_the_plan(dataset, replicas, samples):
    """Replicas have micro-batches of b, M of them in a step."""
    held_out = HeldOut(dataset, samples)
    batch = sum(size * count for size, count in replicas)
    first, rows, weight = 0, [], 0.0
    for size, count in replicas:
        run = held_out.run_of(first, size * count, batch)
        first += size * count
        for found in held_out.micro_batches(run, size):
            assert found.tokens.shape == found.labels.shape == (size, 8)
            rows += [
                r for r in torch.cat([found.tokens, found.labels], dim=1).tolist() if any(r[:8])
            ]
            weight += found.weight
    expected = [dataset.sample(SEED, i) for i in range(samples)]
    assert rows == [[*s.tokens[:-1].tolist(), *s.labels.tolist()] for s in expected]
    assert weight == pytest.approx(1.0)


def test_a_micro_batch_that_is_filled_up_counts_for_its_own_labels_alone(dataset):
    held_out = HeldOut(dataset, 5)
    *_, last = held_out.micro_batches(range(5), 4)
    assert (last.labels[1:] == IGNORED).all()
    own = int((last.labels[0] != IGNORED).sum())
    assert last.weight == own / dataset.count_labels(SEED, 0, 5)


def test_no_more_samples_are_evaluated_than_there_are(dataset):
    assert HeldOut(dataset, 10**6).samples == dataset.samples


def spec_of(data, **changes):
    given = {"model": "m", "global_batch": 4, "sequence_length": 8, "steps": 1, **changes}
    return TrainingSpec(data=data, **given)


def test_a_split_without_a_held_out_part_is_refused_with_the_field():
    with pytest.raises(
        ValueError, match=r"evaluateEvery needs a held-out part; .* spec.data.split"
    ):
        spec_of("/nowhere", evaluate_every=5)


def test_a_held_out_part_that_is_too_small_is_one_sentence(tmp_path):
    prefix = write_pair(tmp_path / "text", [[1] * 99])
    with refused(InvalidDataset, "OutOfRange"):
        HeldOut.of(of(prefix, split=(9, 1, 0)), 8, 256)


def test_the_documents_of_each_micro_batch_are_those_of_its_samples(dataset):
    """A row that fills it up is one."""
    held_out = HeldOut(dataset, 5)
    rows = [dataset.documents(SEED, sample) for sample in range(5)]
    assert [*held_out.documents(range(5), 4)] == [rows[:4], [rows[4], (8,), (8,), (8,)]]
    assert {sum(row) for row in rows} == {8}
