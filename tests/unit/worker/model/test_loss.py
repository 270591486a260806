"""worker/model/loss.py: cross entropy to the rounding of fp32, in memory of some tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from tests.equal_tensors import are_equal
from tests.peak_memory import peak_bytes
from worker.model import loss as loss_module
from worker.model.loss import vocabulary_loss
from worker.model.parallel import TensorParallel
from worker.training_settings import IGNORED

LOSS = vocabulary_loss(TensorParallel())
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def case(samples, length, vocab, dtype, seed, ignored=0.3):
    """Logits [b, S, V] and labels [b, S], of which a share is IGNORED."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, length, vocab, generator=generator).mul_(4).to(dtype)
    labels = torch.randint(vocab, (samples, length), generator=generator)
    labels[torch.rand(samples, length, generator=generator) < ignored] = IGNORED
    return logits.requires_grad_(), labels


def both(logits, labels, scale=1.0):
    """(loss, gradient of the logits)."""
    found = LOSS(logits, labels)
    (gradient,) = torch.autograd.grad(found * scale, logits)
    return found, gradient


@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(2, 40),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
def test_loss_and_gradient_are_those_of_the_definition_in_fp64(samples, length, vocab, dtype, seed):
    logits, labels = case(samples, length, vocab, dtype, seed)
    found, gradient = both(logits, labels)
    wide = logits.detach().double().requires_grad_()
    total = cross_entropy(
        wide.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    expected = total / (labels != IGNORED).sum().clamp(min=1)
    (exact,) = torch.autograd.grad(expected, wide)
    assert found.dtype == torch.float32
    assert gradient.dtype == dtype
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    rounding = torch.finfo(dtype).eps
    assert torch.allclose(gradient.double(), exact, rtol=2 * rounding, atol=1e-6)


def test_without_a_label_loss_and_gradient_are_0():
    logits, labels = case(2, 5, 11, torch.float32, 0, ignored=2.0)
    found, gradient = both(logits, labels)
    assert found == 0
    assert not gradient.any()


def test_a_token_that_is_ignored_cannot_spoil_the_others():
    logits, labels = case(1, 6, 11, torch.float32, 3, ignored=0.0)
    expected = LOSS(logits[:, 1:], labels[:, 1:])
    with torch.no_grad():
        logits[0, 0], labels[0, 0] = float("nan"), IGNORED
    assert LOSS(logits, labels).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_logit_without_end_gives_a_loss_that_is_not_finite(wrong):
    logits, labels = case(1, 6, 11, torch.float32, 3, ignored=0.0)
    with torch.no_grad():
        logits[0, 2, 4] = wrong
    assert not LOSS(logits, labels).isfinite()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at_once", [1, 97, 300])
def test_how_many_tokens_are_taken_at_a_time_changes_no_bit(at_once, dtype, monkeypatch):
    logits, labels = case(3, 7, 97, dtype, 1)
    whole = both(logits, labels, 3.0)
    monkeypatch.setattr(loss_module, "HOST_AT_ONCE", at_once)
    assert are_equal(whole, both(logits, labels, 3.0))


def test_beside_the_gradient_only_some_tokens_are_held_in_fp32(monkeypatch):
    """One number a token comes to it: less than a hundredth."""
    monkeypatch.setattr(loss_module, "HOST_AT_ONCE", 1 << 16)
    logits, labels = case(1, 1 << 9, 1 << 12, torch.bfloat16, 2)
    some_bytes = 4 * loss_module.HOST_AT_ONCE
    most = 1.01 * (logits.nbytes + some_bytes)
    assert peak_bytes(lambda: both(logits, labels)) <= most
