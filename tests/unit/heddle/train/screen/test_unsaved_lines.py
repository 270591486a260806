"""heddle/train/screen/unsaved_lines.py: a full disk says each minute what to do."""

from __future__ import annotations

import pytest

from heddle.train.screen.minute_lines import AGAIN_S
from heddle.train.screen.unsaved_lines import UnsavedLines, end_warning
from heddle_operator.apis.spec import Output
from tests.unit.heddle.train.recorded import a_run

FULL = "the final weights cannot be written: no space left on device: '/out/parts'"


@pytest.fixture
def run(tmp_path):
    """All steps are trained, and the weights are being written."""
    found = a_run(tmp_path)
    spec = found.job.spec.model_copy(update={"output": Output(path=str(tmp_path))})
    found.job = found.job.model_copy(update={"spec": spec})
    found.recorder.phase = "Saving"
    return found


def test_a_disk_that_refuses_is_said_at_once_and_each_minute_while_it_lasts(run, tmp_path):
    said, now_s = [], [0.0]
    lines = UnsavedLines(run, said.append, lambda: now_s[0])
    lines.look()
    assert said == []
    run.recorder.output_failure = FULL
    lines.look()
    assert said == [
        f"step 10: {FULL}. To save them, make {tmp_path} writable; Ctrl-C, given twice, ends the "
        "run without them"
    ]
    for after_s, count in ((AGAIN_S - 1, 1), (AGAIN_S, 2), (2 * AGAIN_S - 1, 2), (2 * AGAIN_S, 3)):
        now_s[0] = after_s
        lines.look()
        assert len(said) == count
    run.recorder.output_failure = ""
    lines.look()
    run.recorder.output_failure = FULL  # another failure is said at once
    lines.look()
    assert len(said) == 4


def test_a_first_ctrl_c_while_weights_are_written_promises_nothing(run, tmp_path):
    assert end_warning(run) == (
        "step 10: the training has ended, and the weights are being written; again: end at once, "
        "and no weights are saved"
    )
    run.recorder.output_failure = FULL
    assert "the weights are not saved yet: make " in end_warning(run)
