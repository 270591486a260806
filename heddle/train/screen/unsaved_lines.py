"""Says each minute what to do, while the disk refuses the final weights of a run.

Invariant: reads the recorder and the disk, changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from heddle.train.run import LocalRun
from heddle.train.unsaved import remedy, without_waiting

AGAIN_S = 60.0  # between two lines
LOOK_S = 1.0


class UnsavedLines:
    """Says how the final weights of a run can be saved.

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
        self._said_s: float | None = None

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Say what is due: at the first failure, then each minute while it lasts."""
        now_s, recorder = self._clock(), self._run.recorder
        if not recorder.output_failure:
            self._said_s = None
        elif self._said_s is None or now_s - self._said_s >= AGAIN_S:
            self._said_s = now_s
            self._say(
                f"step {recorder.step}: {recorder.output_failure}. To save them, "
                f"{remedy(_folder(self._run), self._run.job.workload.model)}; Ctrl-C ends the run "
                "without waiting"
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
