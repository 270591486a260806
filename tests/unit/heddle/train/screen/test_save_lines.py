"""heddle/train/screen/save_lines.py: saves that fail are said at once, then each minute."""

from __future__ import annotations

from heddle.train.screen.minute_lines import AGAIN_S
from heddle.train.screen.save_lines import SaveLines
from tests.unit.heddle.train.recorded import a_run, report
from worker.contract import SaveRecord

WHY = "/saves/tiny/step-3.e1: not a directory"


def save(step, outcome, rank=0, error=None):
    return SaveRecord(
        epoch=1, step=step, rank=rank, outcome=outcome, ended_unix_s=step, error=error
    )


def test_failures_are_said_at_once_and_then_each_minute_until_a_checkpoint_is_whole(tmp_path):
    run, said, now_s = a_run(tmp_path), [], 0.0
    lines = SaveLines(run, said.append, lambda: now_s)

    def told(at_s, *saves):
        nonlocal now_s
        now_s = at_s
        run.recorder.take_report(report("demo-fast-1-0").model_copy(update={"saves": saves}))
        lines.look()
        return len(said)

    assert told(0, save(2, "saved")) == 0
    assert told(1, save(3, "given up"), save(3, "late", 1)) == 0  # another one took its place
    assert told(2, save(4, "failed", 1, WHY)) == 1
    assert said == [f"step 10: the checkpoint of step 4 is not saved: {WHY}; the training goes on"]
    assert told(3, save(5, "failed", 1, WHY)) == 1
    assert told(2 + AGAIN_S) == 2
    assert "the checkpoint of step 5 is not saved" in said[-1]
    assert told(2 + 3 * AGAIN_S) == 2  # it was said, and no other one failed
    assert told(3 + 3 * AGAIN_S, save(6, "saved")) == 2
    assert told(4 + 3 * AGAIN_S, save(7, "failed", 0, WHY)) == 3
