"""A status is written when it changed, not more often than somebody can read it."""

from __future__ import annotations

import pytest

from heddle_operator.controller.writers.status_throttle import LEAST_S, PROGRESS_S, StatusThrottle


def conditions(message, status="False"):
    return [{"type": "Planned", "status": status, "message": message}]


FIRST = {"phase": "Running", "progress": {"step": 1}, "conditions": conditions("4 GPUs")}


@pytest.mark.parametrize(
    ("status", "wait_s"),
    [
        (FIRST, 0.0),
        ({**FIRST, "phase": "Recovering"}, LEAST_S),
        ({**FIRST, "progress": {"step": 2}}, PROGRESS_S),
        ({**FIRST, "phase": "Recovering", "progress": {"step": 2}}, LEAST_S),
        ({**FIRST, "message": "3 GPUs", "conditions": conditions("3 GPUs")}, PROGRESS_S),
        ({**FIRST, "usableGPUs": 3}, PROGRESS_S),
        ({**FIRST, "conditions": conditions("4 GPUs", "True")}, LEAST_S),
    ],
    ids=["nothing", "phase", "progress", "both", "words", "GPUs", "condition"],
)
def test_changes_are_written_at_once_and_progress_now_and_then(status, wait_s):
    pace = StatusThrottle()
    assert pace.wait_s(FIRST, 10.0) <= 0
    pace.written(FIRST, 10.0)
    assert pace.wait_s(status, 10.0) == wait_s
    assert pace.wait_s(status, 10.0 + wait_s) <= 0
    assert pace.differs(status) == (wait_s > 0)
