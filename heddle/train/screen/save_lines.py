"""Says at the first failed save of a run, then each minute while others fail, why it failed.

Invariant: reads the recorder, changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from heddle.train.checkpoints import failed_save
from heddle.train.run import LocalRun
from worker.contract import SaveRecord

AGAIN_S = 60.0  # between two lines
LOOK_S = 1.0


class SaveLines:
    """Says which checkpoints of a run are not saved.

    Args:
        run: that trains.
        say: gets each line.
        clock: seconds, from any moment on.
    """

    def __init__(
        self,
        run: LocalRun,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._say = say
        self._clock = clock
        self._said: SaveRecord | None = None
        self._said_s: float | None = None

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Say what is due; a whole checkpoint makes the next failure a first one."""
        now_s, recorder = self._clock(), self._run.recorder
        failed = failed_save(recorder.saves.values())
        if failed is None:
            self._said = self._said_s = None
            return
        is_due = self._said_s is None or now_s - self._said_s >= AGAIN_S
        if failed == self._said or not is_due:
            return
        self._said, self._said_s = failed, now_s
        self._say(
            f"step {recorder.step}: the checkpoint of step {failed.step} is not saved: "
            f"{failed.error}; the training goes on"
        )
