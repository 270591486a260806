"""Says each minute what to do, while the disk refuses the final weights of a run.

Invariant: reads the recorder and the disk, changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from heddle.train.run import LocalRun
from heddle.train.screen.minute_lines import MinuteLines
from heddle.train.unsaved import remedy, without_waiting


class UnsavedLines(MinuteLines):
    """Says how the final weights of a run can be saved."""

    def look(self) -> None:
        """Say what is due: at the first failure, then each minute while it lasts."""
        now_s, recorder = self._clock(), self._run.recorder
        if not recorder.output_failure:
            self._said_s = None
        elif self._is_due(now_s):
            self._said_s = now_s
            self._say(
                f"step {recorder.step}: {recorder.output_failure}. To save them, "
                f"{remedy(_folder(self._run), self._run.job.workload.model)}; Ctrl-C, "
                "given twice, ends the run without them"
            )


def end_warning(run: LocalRun) -> str:
    """Lines after a first Ctrl-C while the final weights are written."""
    recorder, folder = run.recorder, _folder(run)
    state = "the weights are being written"
    if recorder.output_failure:
        state = f"the weights are not saved yet: {remedy(folder, run.job.workload.model)}"
    return (
        f"step {recorder.step}: the training has ended, and {state}; again: end at once, and "
        f"{without_waiting(folder)}"
    )


def _folder(run: LocalRun) -> Path:
    """Where the final weights go; only a job with an output writes them."""
    assert run.job.spec.output is not None
    return Path(run.job.spec.output.path)
