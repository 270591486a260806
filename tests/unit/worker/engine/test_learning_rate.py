"""worker/engine/learning_rate.py: up in a straight line, then as the schedule says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.contract import TrainingSpec
from worker.engine.learning_rate import learning_rate
from worker.training_settings import Schedule

peaks = st.floats(1e-6, 1.0)


def spec_of(peak=1.0, warmup=0, steps=100, **schedule):
    return TrainingSpec(
        model="m",
        data="d",
        global_batch=1,
        sequence_length=1,
        steps=steps,
        learning_rate=peak,
        warmup_steps=warmup,
        schedule=Schedule(**schedule),
    )


@given(peaks, st.integers(1, 1000), st.sampled_from(["constant", "cosine"]))
def test_it_rises_by_equal_steps_and_reaches_the_peak_with_the_last_of_them(peak, warmup, kind):
    spec = spec_of(peak, warmup, kind=kind)
    first = learning_rate(spec, 0)
    assert first == pytest.approx(peak / warmup)
    middle = warmup // 2
    assert learning_rate(spec, middle) == pytest.approx((middle + 1) * first)
    assert learning_rate(spec, warmup - 1) == peak


@given(peaks, st.integers(0, 100), st.integers(0, 10_000))
def test_a_constant_rate_stays(peak, warmup, later):
    assert learning_rate(spec_of(peak, warmup), warmup + later) == peak


def rates_of_torch(scheduler_of, steps):
    """The rates of one of torch's schedulers, step by step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = scheduler_of(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_a_cosine_is_that_of_torch_and_then_stays_at_its_end():
    spec = spec_of(warmup=10, steps=60, kind="cosine", decay_steps=40, min_learning_rate=0.1)
    expected = rates_of_torch(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40, eta_min=0.1), 40
    )
    assert [learning_rate(spec, step) for step in range(10, 50)] == pytest.approx(expected)
    assert {learning_rate(spec, step) for step in range(50, 60)} == {0.1}


def test_a_cosine_takes_all_steps_after_the_warm_up_unless_it_is_told():
    spec = spec_of(warmup=10, steps=50, kind="cosine")
    told = spec_of(warmup=10, steps=50, kind="cosine", decay_steps=40)
    assert [learning_rate(spec, s) for s in range(50)] == [
        learning_rate(told, s) for s in range(50)
    ]


def test_wsd_is_flat_and_falls_in_a_straight_line_in_its_last_steps():
    spec = spec_of(warmup=5, steps=50, kind="wsd", decay_steps=20, min_learning_rate=0.2)
    assert {learning_rate(spec, step) for step in range(5, 31)} == {1.0}
    expected = rates_of_torch(
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, end_factor=0.2, total_iters=20), 20
    )
    assert [learning_rate(spec, step) for step in range(30, 50)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"decay_steps": 5}, "a constant schedule has no decay"),
        ({"min_learning_rate": 0.1}, "a constant schedule has no decay"),
        ({"kind": "wsd"}, "a wsd schedule needs decaySteps"),
        (
            {"kind": "wsd", "decay_steps": 91},
            "warm-up and decay take 10 \\+ 91 steps, the job has 100",
        ),
        ({"kind": "cosine", "min_learning_rate": 2}, "minLearningRate 2 is above learningRate 1"),
    ],
)
def test_a_schedule_that_would_not_do_what_it_says_is_refused(schedule, sentence):
    with pytest.raises(ValueError, match=sentence):
        spec_of(warmup=10, **schedule)
