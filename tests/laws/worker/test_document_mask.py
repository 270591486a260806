"""With a document mask a packed sample has the logits and gradients of its documents, apart."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from tests.families import FAMILIES, grouped
from tests.unit.worker.model.computing import ALONE, layers_of, named, run, weights_of
from worker.model.forward_context import Documents, ForwardContext

LENGTH = 24
ROUNDING = 1e-9  # in fp64; some numbers are of the size of 100
MODELS = {**FAMILIES, "grouped": grouped(FAMILIES["llama3"], 2)}
ROWS = st.lists(
    st.sets(st.integers(1, LENGTH - 1), max_size=6).map(
        lambda cuts: tuple(b - a for a, b in itertools.pairwise((0, *sorted(cuts), LENGTH)))
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow  # eight models, layer by layer
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(max_examples=10)
@given(ROWS, st.sampled_from(["none", "selective", "full"]))
def test_a_packed_sample_is_its_documents_apart(model, rows, recompute):
    generator = torch.Generator().manual_seed(len(rows))
    tokens = torch.randint(model.vocab, (len(rows), LENGTH), generator=generator)
    labels = torch.randint(model.vocab, (len(rows), LENGTH), generator=generator)
    weights = {name: weight.double() for name, weight in weights_of(model).items()}
    packed = layers_of(model, ALONE, weights, ForwardContext(seed=1, documents=Documents.of(rows)))
    for layer in packed:
        layer.recompute = recompute
    logits = run(packed, tokens)
    cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    alone = layers_of(model, ALONE, weights, None)
    for row, lengths in enumerate(rows):
        begin = 0
        for length in lengths:
            own = slice(begin, begin + length)
            expected = run(alone, tokens[row : row + 1, own])[0]
            assert torch.allclose(logits[row, own], expected, rtol=0, atol=ROUNDING)
            cross_entropy(expected, labels[row, own], reduction="sum").backward()
            begin += length
    gradients = {name: p.grad for name, p in named(alone).items()}
    for name, parameter in named(packed).items():
        assert torch.allclose(parameter.grad, gradients[name], rtol=0, atol=ROUNDING), name
