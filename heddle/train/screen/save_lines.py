"""Says at the first failed save of a run, then each minute while others fail, why it failed.

Invariant: reads the recorder, changes nothing.
"""

from __future__ import annotations

from heddle.train.checkpoints import failed_save
from heddle.train.screen.minute_lines import MinuteLines
from worker.contract import SaveRecord


class SaveLines(MinuteLines):
    """Says which checkpoints of a run are not saved."""

    _said: SaveRecord | None = None

    def look(self) -> None:
        """Say what is due; a whole checkpoint makes the next failure a first one."""
        now_s, recorder = self._clock(), self._run.recorder
        failed = failed_save(recorder.saves.values())
        if failed is None:
            self._said = self._said_s = None
            return
        if failed == self._said or not self._is_due(now_s):
            return
        self._said, self._said_s = failed, now_s
        self._say(
            f"step {recorder.step}: the checkpoint of step {failed.step} is not saved: "
            f"{failed.error}; the training goes on"
        )
