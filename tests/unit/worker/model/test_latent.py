"""worker/model/latent.py: heads through projections of low rank, and pairs that are rotated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from planner.model.arithmetic import Rotary, RotaryScaling
from tests.families import MIXTURES
from tests.unit.worker.model.computing import weights_of
from worker.model.latent import apart, heads_of, padded, score_scale
from worker.model.parallel import TensorParallel
from worker.model.rotary import frequencies, rotate

V2, V3 = MIXTURES["deepseek-v2"], MIXTURES["deepseek-v3"]
ROTARY = Rotary(100.0)


def heads(model, turn=lambda x: x):
    weights = weights_of(model)
    h = torch.randn(2, 5, model.hidden, generator=torch.Generator().manual_seed(1))
    return heads_of(h, model, lambda name: weights[f"1.{name}"], TensorParallel(), turn)


@pytest.mark.parametrize("model", [V2, V3], ids=lambda model: model.name)
def test_all_heads_share_one_rotary_key_and_no_more(model):
    q, k, v = heads(model)
    plain = model.head_dim - model.latent.rope
    assert q.shape == k.shape == (2, 4, 5, model.head_dim)
    assert v.shape == (2, 4, 5, model.latent.value)
    for head in (1, 2, 3):
        assert torch.equal(k[:, head, :, plain:], k[:, 0, :, plain:])
        assert not torch.allclose(k[:, head, :, :plain], k[:, 0, :, :plain])


def test_only_the_rotary_part_is_turned():
    plain = V3.head_dim - V3.latent.rope
    for still, turned in zip(heads(V3)[:2], heads(V3, torch.zeros_like)[:2], strict=True):
        assert torch.equal(still[..., :plain], turned[..., :plain])
        assert not turned[..., plain:].any()


def test_neighbours_are_rotated_as_complex_numbers():
    x = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(2))
    angle = torch.arange(6)[:, None] * frequencies(ROTARY, 8)
    turned = torch.view_as_complex(x.view(1, 2, 6, 4, 2)) * torch.polar(
        torch.ones_like(angle), angle
    )
    wanted = torch.cat([turned.real, turned.imag], dim=-1)
    assert torch.allclose(rotate(apart(x), ROTARY), wanted, atol=1e-6)


def test_values_are_as_wide_as_keys_with_zeros_behind():
    wide = padded(torch.ones(1, 1, 2, 3), 5)
    assert wide[0, 0].tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]] * 2


def test_scores_of_latent_attention_alone_grow_with_yarn():
    scaling = V2.arithmetic.rotary.scaling
    assert scaling.score_scale > 1
    assert score_scale(V2) == pytest.approx(V2.head_dim**-0.5 * scaling.score_scale)
    assert score_scale(replace(V2, latent=None)) == V2.head_dim**-0.5
    assert score_scale(V3) == V3.head_dim**-0.5


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones():
    scaling = RotaryScaling(kind="yarn", factor=8.0, original_positions=64, fast_turns=8.0)
    plain = frequencies(ROTARY, 64)
    kept = frequencies(Rotary(100.0, scaling), 64) / plain
    turns = 64 * plain / (2 * torch.pi)
    assert kept[turns > 9] == pytest.approx(1.0)
    assert kept[turns < 0.9] == pytest.approx(1 / 8)
    assert (kept.diff() <= 1e-6).all()


def test_yarn_lengthens_what_is_rotated():
    scaling = RotaryScaling(kind="yarn", factor=8.0, original_positions=64)
    x = torch.ones(1, 1, 4, 8)
    ratio = rotate(x, Rotary(100.0, scaling)).norm(dim=-1) / x.norm(dim=-1)
    assert ratio.flatten().tolist() == pytest.approx([scaling.rotated_scale] * 4)
