"""One save of one rank, in a thread of its own: when it reads what, and how it ends.

Invariant: its end is told once; one that is given up with an error is told there and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import torch

from planner.plans.pieces import Piece
from worker.checkpoint.manifest import SavedStep
from worker.checkpoint.save import NotYet
from worker.checkpoint_records import SaveOutcome
from worker.state.still import Dropped, Reading, StillState

# A paced save takes so long, or as long as this rate takes for it where that is less: writing costs
# 2 s of a core for each GB, which are 4 % of it then.
PACED_S, PACED_BYTES_S = 45.0, 20e6


class GivenUp(Exception):
    """The save ends early; nothing is wrong."""


class Writing:
    """One save, which begins at once.

    Args:
        saved: the state.
        reading: of it.
        still: that has it, and gets it back at the end.
        write: does both phases in the thread, and gives the bytes of this rank.
        end: hears the outcome, its error and those bytes.
        is_paced: it may take longer, so that training keeps its cores.

    Attributes:
        began_s: the start, by the monotonic clock.
        moved_s: when a byte was last written, or a file of another rank seen, as far as is known.
        is_writing: the part of this rank is not in the store yet.
        is_saved: this rank's part is saved; of rank 0: the whole checkpoint.
    """

    def __init__(
        self,
        saved: SavedStep,
        reading: Reading,
        still: StillState,
        write: Callable[[Writing], int],
        end: Callable[[Writing, SaveOutcome, str | None, int], None],
        *,
        is_paced: bool,
    ) -> None:
        self.state, self.is_writing, self.is_saved = saved, True, False
        self.began_s = self.moved_s = time.monotonic()
        self._reading, self._still = reading, still
        self._write, self._end = write, end
        self._bytes_s = max(PACED_BYTES_S, reading.live_bytes / PACED_S)
        self._read_bytes = 0
        self._hurried = threading.Event()
        if not is_paced:
            self._hurried.set()
        self._given_up, self._is_told = threading.Event(), False
        self._lacking: NotYet | None = None  # at the newest look
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    @property
    def is_given_up(self) -> bool:
        """Whether it was given up; a store may hold its thread all the same."""
        return self._given_up.is_set()

    @property
    def step(self) -> int:
        """Completed steps of the state."""
        return self.state.step

    @property
    def loss(self) -> float | None:
        """The held-out loss of the state."""
        return self.state.held_out_loss

    @property
    def staged_bytes(self) -> int:
        """Bytes that were copied ahead of the writing."""
        return self._reading.staged_bytes

    @property
    def waited_s(self) -> float:
        """Seconds that training waited for it."""
        return self._reading.waited_s

    def give_up(self, error: str | None = None) -> None:
        """End it; an error is told at once, as the store may hold the thread for good."""
        if error is not None:
            self._is_told = True
            self._end(self, "given up", f"{error}; {self._lacking}" if self._lacking else error, 0)
        self._given_up.set()
        self._hurried.set()
        self._reading.close()  # no update copies for it any more

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until it is given up."""
        self._given_up.wait(seconds)

    def hurry(self) -> None:
        """Write the rest without a pause."""
        self._hurried.set()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False: it has not come by then."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def read(self, box: Piece) -> Iterator[Iterator[torch.Tensor]]:
        """The chunks of each part of a box, when they are due."""
        due_s = self.began_s + self._read_bytes / self._bytes_s
        self._hurried.wait(max(0.0, due_s - time.monotonic()))
        for part in self._reading.chunks(box):
            yield self._counted(part)

    def wrote(self) -> None:
        """This rank's part is in the store."""
        self.is_writing, self.moved_s = False, time.monotonic()

    def saved(self) -> None:
        """All that this rank has to save is saved."""
        self.is_saved, self.moved_s = True, time.monotonic()

    def lacks(self, missing: NotYet) -> None:
        """The store does not hold the parts of all ranks yet."""
        if self._lacking is None or missing.objects > self._lacking.objects:
            self.moved_s = time.monotonic()
        self._lacking = missing

    def _counted(self, part: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        for chunk in part:
            self._read_bytes += chunk.nbytes
            self.moved_s = time.monotonic()
            yield chunk

    def _run(self) -> None:
        outcome: SaveOutcome = "saved"
        error, num_bytes = None, 0
        try:
            if not self._hurried.is_set() and not self._reading.stage():
                self.hurry()
            num_bytes = self._write(self)
        except (GivenUp, Dropped) as why:
            outcome, error = "given up", str(why) or None
            if isinstance(why, Dropped) and error:
                outcome = "failed"
        except Exception as failure:  # whatever it is, training goes on
            outcome, error = "failed", str(failure) or type(failure).__name__
        self._still.end(self._reading)
        if outcome == "saved":
            self.saved()
        if outcome != "given up" or not self._is_told:
            self._end(self, outcome, error, num_bytes)
