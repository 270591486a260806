"""checkpoints/disturbance.py: what a save did to the steps beside it."""

from __future__ import annotations

import pytest

from benchmarks.checkpoints.disturbance import turns_of
from benchmarks.checkpoints.disturbance_rank import Row


def rank(cpu_s, *, wall_s, peak_bytes):
    """Two quiet steps and one beside a save, which takes more of all."""
    quiet = Row(0, "quiet", 1.0, 1.0, 100)
    return {
        "rows": [quiet, quiet, Row(0, "paced", wall_s, cpu_s, peak_bytes)],
        "saves": [
            {"mode": "paced", "seconds": 10 * wall_s, "copy_s": wall_s / 10, "copied_bytes": 7}
        ],
    }


def test_a_share_is_over_quiet_steps_and_sums_the_processors_of_ranks():
    both = [rank(1.5, wall_s=1.1, peak_bytes=140), rank(1.1, wall_s=1.2, peak_bytes=150)]
    (turn,) = turns_of(both, "paced")
    assert turn.cpu == pytest.approx(0.3)
    assert turn.longest == pytest.approx(0.2)
    assert turn.middle == pytest.approx(0.15)
    assert (turn.seconds, turn.copy_s) == pytest.approx((12.0, 0.12))
    assert (turn.memory_bytes, turn.steps) == (50, 1)
