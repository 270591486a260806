"""The learning rate as a pure function of the step: linear warm-up, then constant."""


def learning_rate(peak: float, warmup_steps: int, step: int) -> float:
    """Rate of the update that step `step` (from 0) applies."""
    return peak * min(1.0, (step + 1) / warmup_steps) if warmup_steps else peak
