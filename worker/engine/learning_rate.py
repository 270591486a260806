"""The learning rate as a pure function of the step.

A linear warm-up, then constant, half a cosine, or constant with a linear decay at the end.
Source: the usual schedules of language models; WSD (warm-up, stable, decay) is MiniCPM's.
"""

from __future__ import annotations

import math

from worker.contract import TrainingSpec


def learning_rate(spec: TrainingSpec, step: int) -> float:
    """Rate of the update that step `step` (from 0) applies."""
    peak, warmup, schedule = spec.learning_rate, spec.warmup_steps, spec.schedule
    if step < warmup:
        return peak * ((step + 1) / warmup)
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "cosine":
        decay = schedule.decay_steps or max(1, spec.steps - warmup)
        kept = (1 + math.cos(math.pi * _progress(step, warmup, decay))) / 2
    else:
        assert schedule.decay_steps is not None  # `Schedule.fault` refuses it
        kept = 1 - _progress(step, spec.steps - schedule.decay_steps, schedule.decay_steps)
    return schedule.min_learning_rate + (peak - schedule.min_learning_rate) * kept


def _progress(step: int, first: int, count: int) -> float:
    """Which share of the decay lies before a step, from 0 to 1."""
    return min(1.0, max(0, step - first) / count)
