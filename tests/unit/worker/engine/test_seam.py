"""worker/engine/seam.py: how far a rank is, and the loss scale, follow from the norms alone."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from worker.contract import Resume, TrainingSpec
from worker.engine.seam import MOST_SCALE, Progress
from worker.training_settings import LossScale


def spec_of(precision, **scale):
    return TrainingSpec(
        model="m",
        data="d",
        global_batch=1,
        sequence_length=8,
        steps=9,
        precision=precision,
        loss_scale=LossScale(**scale) if scale else None,
    )


@given(st.lists(st.sampled_from([0.5, math.nan, math.inf]), max_size=40), st.integers(1, 5))
def test_ranks_that_know_the_same_norms_agree(norms, window):
    """So one that applies a step late, with a norm that it was told, has the same scale."""
    spec = spec_of("fp16", initial=8, window=window)
    one, other = Progress.of_start(spec), Progress.of_start(spec)
    for norm in norms:
        one.advance(norm, spec.scaling)
    for norm in norms:
        told = Resume.model_validate_json(Resume(step=1, gradient_norm=norm).model_dump_json())
        other.advance(told.gradient_norm, spec.scaling)
    assert one.agreed == other.agreed
    assert one.step == len(norms)
    assert one.updates == sum(map(math.isfinite, norms))
    assert 1 <= one.loss_scale <= MOST_SCALE
    assert one.loss_scale & (one.loss_scale - 1) == 0


def test_the_scale_halves_at_an_overflow_and_doubles_after_a_window():
    spec = spec_of("fp16", initial=8, window=3)
    progress, scales = Progress.of_start(spec), []
    for norm in (1.0, math.inf, 1.0, 1.0, 1.0, 1.0, 1.0, math.inf):
        progress.advance(norm, spec.scaling)
        scales.append(progress.loss_scale)
    assert scales == [8, 4, 4, 4, 8, 8, 8, 4]


def test_a_loss_that_is_not_finite_leaves_the_scale_and_its_window():
    spec = spec_of("fp16", initial=8, window=3)
    progress = Progress.of_start(spec)
    for norm in (1.0, math.nan, 1.0, math.nan):
        progress.advance(norm, spec.scaling)
    assert (progress.step, progress.updates) == (4, 2)
    assert (progress.loss_scale, progress.good_steps) == (8, 2)


def test_a_window_that_is_smaller_after_a_restart_ends_at_once():
    progress = Progress(loss_scale=8, good_steps=900)
    progress.advance(1.0, spec_of("fp16", initial=8, window=500).scaling)
    assert (progress.loss_scale, progress.good_steps) == (16, 0)


def test_other_precisions_have_no_scale():
    for precision in ("fp32", "bf16"):
        spec = spec_of(precision)
        progress = Progress.of_start(spec)
        progress.advance(math.nan, spec.scaling)
        progress.advance(1.0, spec.scaling)
        assert progress.agreed == (2, 1, 1, 0)
