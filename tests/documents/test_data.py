"""docs/data.md gives the order of samples: its Python is run beside the worker's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.worker.data.texts import of, write_pair
from worker.data.blend import Blend
from worker.data.dataset import PARTS, Dataset
from worker.data.order import Permutation

TEXT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
(CODE,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
WRITTEN: dict[str, Any] = {}
exec(CODE, WRITTEN)  # the document's own lines
SEEDS = [0, 7, -3, 2**64 + 5]
MIXES = [(1.0,), (0.7, 0.3), (3, 1, 2), (0.1, 0.2, 0.3, 0.25, 1e-3)]


@pytest.mark.parametrize("length", [4, 16])
@pytest.mark.parametrize("weights", MIXES)
@pytest.mark.parametrize("part", PARTS)
def test_the_samples_of_the_document_are_the_workers(tmp_path, weights, length, part):
    prefixes, corpora = [], []
    for index, weight in enumerate(weights):
        documents = [list(range(100 * index, 100 * index + 23 + index))] * 10
        prefixes.append(write_pair(tmp_path / str(index), documents))
        share = slice(0, 6) if part == "training" else slice(6, 10)
        corpora.append((weight, np.concatenate(documents[share])))
    spec = of(*prefixes, weights=weights, split=(60, 40, 0))
    dataset = Dataset(spec, length, part=part)
    for seed in SEEDS:
        for position in [*range(150), 10**9]:  # several passes over each corpus
            found = WRITTEN["sample"](position, corpora, length, seed, PARTS.index(part))
            assert found.tolist() == dataset.sample(seed, position).tokens.tolist()


@given(
    st.integers(1, 10**15), st.sampled_from(SEEDS), st.integers(0, 9), st.integers(0, 3), st.data()
)
def test_a_place_of_a_large_corpus_is_the_workers(size, seed, stream, data_epoch, data):
    place = data.draw(st.integers(0, size - 1))
    expected = Permutation(size, seed, stream, data_epoch)(place)
    assert WRITTEN["permuted"](place, size, seed, stream, data_epoch) == expected


@given(st.sampled_from(MIXES), st.integers(0, 10**15))
def test_a_position_of_a_blend_is_the_workers(weights, position):
    exact = [WRITTEN["Fraction"](str(weight)) for weight in weights]
    assert WRITTEN["from_blend"](position, exact) == Blend(weights).place(position)
