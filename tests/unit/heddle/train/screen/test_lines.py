"""heddle/train/screen/lines.py: a run without a screen says its plans and its steps."""

from __future__ import annotations

import pytest

from heddle.train.recorder import Recorder
from heddle.train.screen.lines import LINE_S, StepLines, duration, step_line
from tests.unit.heddle.train.recorded import FIRST, RESUMED_S, a_run, report, steps


@pytest.fixture
def run(tmp_path):
    """As far as the fourth step of the first epoch."""
    found = a_run(tmp_path)
    recorded, found.recorder = found.recorder, Recorder()
    found.recorder.epochs = recorded.epochs
    found.recorder.take_report(report("demo-fast-1-0", *steps(1, 0, 100.0)[:4]))
    return found


def test_the_plan_is_said_once_and_steps_every_few_seconds(run):
    said, times_s = [], iter((0.0, 1.0, LINE_S - 0.1, LINE_S))
    lines = StepLines(run, said.append, lambda: next(times_s))
    for _ in range(3):
        lines.take_steps()
    assert len(said) == 2
    assert said[0].startswith(f"epoch 1 (start) trains on 2 ranks by the plan {FIRST}; ")
    assert said[0].endswith("s a step emulated")
    assert said[1] == "step 4/10  loss 4.7000  0.25 s a step  ETA 2 s"
    lines.take_steps()
    assert len(said) == 3


def test_a_new_plan_is_said_at_once(run):
    said = []
    lines = StepLines(run, said.append, lambda: 0.0)
    lines.take_steps()
    run.recorder.take_report(report("demo-fast-1-0", *steps(2, 5, RESUMED_S)))
    lines.take_steps()
    assert [line.split(")")[0] for line in said[::2]] == ["epoch 1 (start", "epoch 2 (join"]


def test_before_the_first_step_nothing_is_claimed(run):
    said = []
    run.recorder = Recorder()
    StepLines(run, said.append).take_steps()
    assert said == []


def test_a_step_that_tells_its_tokens_has_a_rate_and_the_last_one_no_time_left(run):
    told = [step.model_copy(update={"tokens": 1000, "mfu": 0.25}) for step in steps(1, 5, 200.0)]
    run.recorder.take_report(report("demo-fast-2-0", *told))
    assert step_line(run, run.recorder.epochs[0]) == (
        "step 10/10  loss 4.1000  4,000 tokens/s  0.25 s a step  MFU 25.0 %"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(8.4, "8 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (-1.0, "0 s")],
)
def test_a_duration_is_said_in_two_units_at_most(seconds, words):
    assert duration(seconds) == words
