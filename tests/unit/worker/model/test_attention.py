"""worker/model/attention.py: the definition's numbers, without the scores of all pairs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.peak_memory import peak_bytes
from worker.device.device import CPU
from worker.model import attention
from worker.model.attention import attend, in_turn, visible
from worker.model.dropout import dropped_scores, keep_mask
from worker.model.forward_context import Documents, ForwardContext

SCALE = 0.4
WIDTH = 4


def case(samples, heads, shares, length, seed=0, dtype=torch.float32, width=WIDTH):
    """Queries, keys and values in the order in which a layer has them, of few heads of keys."""
    generator = torch.Generator().manual_seed(seed)

    def one(count):
        made = torch.randn(samples, length, count, width, generator=generator).to(dtype)
        return made.transpose(1, 2).requires_grad_()

    return one(heads * shares), one(heads), one(heads)


def dropping(context, heads, length):
    return partial(
        dropped_scores, context=context, name="1.a", rate=0.4, heads=range(heads), length=length
    )


def defined(q, k, v, window, lengths=None, kept=1.0):
    """Attention by its definition, in fp64, of rows that are documents of these lengths.

    `kept` are factors of the probabilities.
    """
    length = q.shape[2]
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    places = torch.arange(length)
    back = places[:, None] - places
    seen = (back >= 0) & (back < (window or length))
    if lengths is not None:
        of = torch.tensor([d for d, n in enumerate(lengths) for _ in range(n)]).view(len(q), -1)
        seen = seen & (of[:, :, None] == of[:, None, :])[:, None]
    scores = (q @ k.transpose(-1, -2) * SCALE).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) * kept) @ v


def with_gradients(function, given):
    found = function(*given)
    weights = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view(found.shape)
    return [found.detach(), *torch.autograd.grad((found * weights).sum(), given)]


def agree(given, window, documents=None, tolerance=1e-5, drop=None, kept=1.0):
    how = {"scale": SCALE, "window": window, "documents": documents, "drop": drop}
    found = with_gradients(lambda q, k, v: attend(q, k, v, **how), given)
    wide = [one.detach().double().requires_grad_() for one in given]
    lengths = documents and documents.lengths
    exact = with_gradients(lambda q, k, v: defined(q, k, v, window, lengths, kept), wide)
    for one, other in zip(found, exact, strict=True):
        assert torch.allclose(one.double(), other, atol=tolerance, rtol=tolerance)


@pytest.fixture
def few(monkeypatch):
    """Short rows are computed some queries at a time too."""
    monkeypatch.setattr(attention, "QUERIES", 3)


@given(
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 17),
    st.integers(0, 20),
    st.integers(1, 6),
)
def test_any_window_of_any_row_is_the_definition(samples, heads, shares, length, window, queries):
    before, attention.QUERIES = attention.QUERIES, queries
    try:
        agree(case(samples, heads, shares, length), window)
    finally:
        attention.QUERIES = before


def test_documents_with_windows_are_the_definition(few):
    documents = Documents.of([(5, 8, 1), (14,)])
    agree(case(2, 2, 2, 14), 4, documents)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_differs_by_its_own_rounding(few, dtype):
    """Sums of as many terms as there are tokens, each rounded once."""
    agree(case(1, 2, 2, 12, dtype=dtype), 5, tolerance=12 * torch.finfo(dtype).eps)


def test_a_token_beyond_the_window_changes_no_bit(few):
    q, k, v = case(1, 1, 1, 11)
    before = attend(q, k, v, scale=SCALE, window=4)
    with torch.no_grad():
        k[:, :, 2] += 1
        v[:, :, 2] += 1
    after = attend(q, k, v, scale=SCALE, window=4)
    changed = (before != after).any(-1).flatten()
    assert changed.tolist() == [2 <= place < 6 for place in range(11)]


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
@pytest.mark.parametrize("shares", [1, 4])
def test_a_window_takes_memory_by_the_row_and_not_by_its_square(backend, shares):
    """Whatever kernel torch takes: output, gradients and one band, against 32 MiB of scores."""
    length, window, heads, width = 2048, 128, 2, 16
    given = case(1, heads, shares, length, width=width)
    band = attention.QUERIES * (attention.QUERIES + window)
    rows_bytes = 4 * sum(one.nbytes for one in given)  # output, gradients, and those in fp32
    band_bytes = 8 * 4 * band * heads * shares  # scores, masks and their gradients, fp32

    def both():
        with sdpa_kernel(backend):
            found = attend(*given, scale=SCALE, window=window)
            torch.autograd.grad(found.sum(), given)

    most = rows_bytes + band_bytes
    assert most < 4 * length * length * heads * shares
    assert peak_bytes(both) <= most


@given(
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 17),
    st.integers(0, 20),
    st.integers(1, 6),
    st.booleans(),
)
def test_dropped_in_bands_is_the_definition(
    samples, heads, shares, length, window, queries, has_documents
):
    given = case(samples, heads, shares, length)
    context = ForwardContext(seed=2, samples=range(3, 3 + samples))
    kept = keep_mask(2, context.samples, "1.a", 0.4, 0, heads * shares * length**2, CPU)
    kept = kept.view(samples, heads * shares, length, length) / 0.6
    drop = dropping(context, heads * shares, length)
    documents = Documents.of([(1, length - 1)] * samples) if has_documents and length > 1 else None
    before, attention.QUERIES = attention.QUERIES, queries
    try:
        agree(given, window, documents, drop=drop, kept=kept)
    finally:
        attention.QUERIES = before


def test_dropout_takes_memory_by_the_row_and_not_by_its_square():
    """Output, gradients and one band, against the 9 bytes of each score that autograd keeps."""
    length, heads, width = 2048, 4, 16
    given = case(1, heads, 1, length, width=width)
    drop = dropping(ForwardContext(seed=2, samples=range(1)), heads, length)
    band = attention.QUERIES * length * heads
    rows_bytes = 4 * sum(one.nbytes for one in given)

    def both():
        found = attend(*given, scale=SCALE, drop=drop)
        torch.autograd.grad(found.sum(), given)

    most = rows_bytes + 8 * 4 * band
    assert most < 9 * length * length * heads
    assert peak_bytes(both) <= most


@pytest.mark.parametrize("way", [attend, in_turn])
def test_shared_keys_are_not_copied_for_each_query_head(way):
    """Output, gradient of the queries, and two such for the kernel; copies would be four more."""
    given = case(1, 1, 8, 2048, width=32)
    mask = {} if way is attend else {"mask": None}

    def both():
        found = way(*given, scale=SCALE, **mask)
        torch.autograd.grad(found.sum(), given)

    assert peak_bytes(both) <= 4 * given[0].nbytes


@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_query_heads_in_turn_give_the_definition(samples, heads, shares, length, masked):
    mask = visible(length, length, 0, torch.device("cpu")) if masked else None
    given = case(samples, heads, shares, length)
    found = with_gradients(lambda q, k, v: in_turn(q, k, v, SCALE, mask), given)
    wide = [one.detach().double().requires_grad_() for one in given]
    exact = with_gradients(lambda q, k, v: defined(q, k, v, 0), wide)
    for one, other in zip(found, exact, strict=True):
        assert torch.allclose(one.double(), other, atol=1e-5, rtol=1e-5)
