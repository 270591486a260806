"""Save checkpoints beside the training: read the state while it stands still, write in a thread.

An update waits for a copy in memory at most, never for a store.  A store that is slow makes a save
late, one that fails ends it; both are said, and the next boundary tries anew.  A paced save copies
its share beside the training and writes the copy.  Without memory for that, or where somebody
waits, it writes from the live state, and an update copies what is not yet read.
Invariants: one save of a rank is written at a time; a save that is given up has no manifest, unless
its parts are all there: a new one may begin before rank 0 has seen the last of them.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.pauses import doubled_s
from planner.plans.pieces import Piece
from planner.plans.plan import Plan
from planner.plans.ranks import Seat
from planner.plans.state_rule import PARTS, element_bytes
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import by_file, largest_file, numel, written
from worker.checkpoint.clearing import Clearing, Retention
from worker.checkpoint.manifest import SavedStep
from worker.checkpoint.save import NotYet, commit, save_part
from worker.checkpoint.vaults.open_vault import open_vault
from worker.checkpoint.vaults.vault import Vault
from worker.checkpoint.writing import GivenUp, Writing
from worker.checkpoint_records import SaveOutcome, SaveRecord
from worker.contract import Directive
from worker.data.digest import data_digest
from worker.device.device import CPU, Device
from worker.state.still import ReadBox, StillState

LOG = logging.getLogger(__name__)
# For the parts of other ranks; twice as long after each look, as a look may be many requests.
LOOK_AGAIN_S, LOOK_AGAIN_MOST_S = 0.1, 3.2
# A suspension, or the end of a job, waits so long for the next byte of a save.  Of other ranks a
# store shows whole files alone, so these have the time of the largest one at this rate beside it.
SILENT_S, LEAST_BYTES_S = 60.0, 10e6
LATE_S = 30.0  # parts of other ranks that take longer are missed; they may be in another folder


class Saver:
    """The saves of one rank in one epoch.

    Args:
        open_: gives the vault; called beside the training, as it may fail or wait.
        model: whose state it is.
        epoch: of the ranks.
        rank: of this process; rank 0 commits and removes old checkpoints.
        ranks: that save a part each.
        pieces: that this rank writes.
        kept: checkpoints that stay.
        data_digest: gives that of the job's data; called once, where the manifest is committed.
        still: of the rank.
        free_bytes: gives the memory of the host that copies of the state may take.
        device: that holds the state.
        file_bytes: of the largest file of any rank.
    """

    def __init__(
        self,
        *,
        open_: Callable[[], Vault],
        model: ModelShape,
        epoch: int,
        rank: int,
        ranks: int,
        pieces: Sequence[Piece],
        kept: Retention,
        data_digest: Callable[[], str],
        still: StillState,
        free_bytes: Callable[[], int],
        device: Device = CPU,
        file_bytes: int = 0,
    ) -> None:
        self._device, self._file_bytes = device, file_bytes
        self._data_digest = functools.cache(data_digest)
        self._open = functools.cache(open_)
        self._model, self._epoch = model, epoch
        self._rank, self._ranks = rank, ranks
        self.keeps_best = kept.best
        self._clearing = Clearing(kept)
        self._pieces, self._still, self._free_bytes = tuple(pieces), still, free_bytes
        tensors = {tensor.name: tensor for tensor in model_tensors(model)}
        elements = sum(numel(tensors[piece.tensor], piece) for piece in pieces)
        self._num_bytes = elements * element_bytes(PARTS)
        self._lock = threading.Lock()
        self._records: list[SaveRecord] = []
        self._save: Writing | None = None
        self._silent: Writing | None = None  # the newest save that was told to be silent

    def begin(self, saved: SavedStep, read: ReadBox, *, is_paced: bool = False) -> bool:
        """Save the state of this boundary; False: the save before is still written.

        A save that only waits for parts of other ranks is given up for the new one.

        Args:
            saved: the state.
            read: gives the parts of a box, live; `StillState` knows when they change.
            is_paced: it may take longer, so that training keeps its cores.
        """
        before = self._save
        if before is not None and before.is_running:
            if before.is_writing:
                self._note(saved.step, "late")
                return False
            before.give_up()
        boxes = [box for of_file in by_file(self._pieces) for box in of_file]
        try:
            reading = self._still.read(
                saved.step, boxes, read, self._num_bytes, self._free_bytes, self._device
            )
        except RuntimeError as error:
            self._note(saved.step, "failed", error=str(error))
            return False
        self._save = Writing(saved, reading, self._still, self._write, self._end, is_paced=is_paced)
        return True

    def hurry(self) -> None:
        """Write the rest of a paced save without a pause: somebody waits for it."""
        if self._save is not None:
            self._save.hurry()

    def take_records(self) -> tuple[SaveRecord, ...]:
        """Saves that have ended since the last call, and one that has been silent for too long."""
        self._tell_silence()
        with self._lock:
            found, self._records = tuple(self._records), []
        return found

    def give_up(self) -> None:
        """End the save under way without a manifest; nobody waits for the store."""
        if self._save is not None:
            self._save.give_up()

    def end_if_silent(self, since_s: float) -> bool:
        """Give up the save under way if nothing was written for too long; False: wait for it.

        Args:
            since_s: when the wait began, by the monotonic clock.
        """
        save = self._save
        if save is None or not save.is_running:
            return True
        silence = self._silence(save, since_s)
        if silence is None:
            return False
        if not save.is_saved:  # old checkpoints are not waited for
            save.give_up(silence)
        return True

    def _silence(self, save: Writing, since_s: float) -> str | None:
        """That a save, waited for since then, is silent for too long; None: it is not."""
        patience_s = SILENT_S
        if not save.is_writing:  # it waits for the parts of other ranks
            patience_s += self._file_bytes / LEAST_BYTES_S
        if time.monotonic() - max(since_s, save.moved_s) < patience_s:
            return None
        return f"nothing was written within {patience_s:.0f} s"

    def _tell_silence(self) -> None:
        """Tell once of a save that is silent: the store may hold it and all later ones for ever."""
        save = self._save
        if save is None or save is self._silent or not save.is_running:
            return
        silence = None if save.is_given_up or save.is_saved else self._silence(save, save.began_s)
        if silence is not None:
            self._silent = save
            error = f"{silence}; the store is waited for"
            LOG.warning("checkpoint of step %d: %s", save.step, error)
            self._note(save.step, "failed", error=error)

    def wait(self, seconds: float) -> bool:
        """Wait for the save under way; False: it has not ended by then."""
        return self._save is None or self._save.wait(seconds)

    @property
    def is_writing(self) -> bool:
        """Whether the rank's own part of a save is still written, so that another one is late."""
        return self._save is not None and self._save.is_running and self._save.is_writing

    @property
    def is_running(self) -> bool:
        """Whether a save is under way, its wait for other ranks included."""
        return self._save is not None and self._save.is_running

    @property
    def is_given_up(self) -> bool:
        """Whether the newest save was given up; a store may hold its thread all the same."""
        return self._save is not None and self._save.is_given_up

    @property
    def has_records(self) -> bool:
        """Whether the end of a save is still to be taken."""
        return bool(self._records)

    @property
    def staged_bytes(self) -> int:
        """Bytes that the newest save has copied ahead of its writing."""
        return self._save.staged_bytes if self._save is not None else 0

    @property
    def reached_step(self) -> int | None:
        """Completed steps of the state of this rank; None: nobody has told."""
        return self._still.step

    @property
    def newest_step(self) -> int | None:
        """Step of the newest save, however it is or ended."""
        return self._save.step if self._save is not None else None

    @property
    def saved_step(self) -> int | None:
        """Step of the newest save, once it is saved; old ones may still be removed."""
        return self._save.step if self._save is not None and self._save.is_saved else None

    def may_be_best(self, loss: float) -> bool:
        """Whether a save could begin, and none that this rank knows has so low a loss."""
        if self.is_writing:
            return False
        best = self._clearing.best
        known = [best.held_out_loss] if best is not None else []
        if self._save is not None and self._save.is_running and self._save.loss is not None:
            known.append(self._save.loss)
        return math.isfinite(loss) and all(loss < one for one in known)

    def _note(
        self,
        step: int,
        outcome: SaveOutcome,
        copy_s: float = 0.0,
        seconds: float = 0.0,
        num_bytes: int = 0,
        error: str | None = None,
        loss: float | None = None,
    ) -> None:
        record = SaveRecord(
            epoch=self._epoch,
            step=step,
            rank=self._rank,
            outcome=outcome,
            copy_s=copy_s,
            seconds=seconds,
            num_bytes=num_bytes,
            ended_unix_s=time.time(),
            error=error,
            held_out_loss=loss,
            best=self._clearing.best if outcome == "saved" else None,
        )
        with self._lock:
            self._records.append(record)

    def _end(self, save: Writing, outcome: SaveOutcome, error: str | None, num_bytes: int) -> None:
        """Tell how a save ended."""
        if outcome != "saved" and error is not None:
            LOG.warning("checkpoint of step %d is not saved: %s", save.step, error)
        seconds = time.monotonic() - save.began_s
        self._note(save.step, outcome, save.waited_s, seconds, num_bytes, error, save.loss)

    def _write(self, save: Writing) -> int:
        """Both phases; the bytes of this rank."""
        vault, attempt = self._open(), Attempt(self._epoch, save.step)
        run = save.state.run
        part = save_part(vault, attempt, self._rank, self._model, self._pieces, save.read, run)
        save.wrote()
        wrote_s, looks = time.monotonic(), 0
        while self._rank == 0:
            is_last_look = save.is_given_up
            try:
                commit(vault, attempt, self._ranks, self._model, save.state, self._data_digest())
            except NotYet as missing:
                save.lacks(missing)
                if is_last_look:
                    is_late = time.monotonic() - wrote_s >= LATE_S
                    raise GivenUp(str(missing) if is_late else "") from None
                looks += 1
                save.pause(doubled_s(LOOK_AGAIN_S, looks, LOOK_AGAIN_MOST_S))
                continue
            save.saved()
            self._clearing.clear(vault)
            break
        return sum(part.files.values())


def saver_of(
    model: ModelShape,
    directive: Directive,
    plan: Plan,
    seat: Seat,
    still: StillState,
    free_bytes: Callable[[], int],
    device: Device = CPU,
) -> Saver | None:
    """The saver of a rank in an epoch; None where the job saves nothing.

    It takes seconds where there are thousands of ranks, so a preparation calls it.
    """
    spec, how = directive.training, directive.training.checkpoint
    if how is None:
        return None
    boxes = written(model, plan)
    return Saver(
        open_=functools.partial(open_vault, how.path),
        model=model,
        epoch=directive.epoch + how.epochs_before,
        rank=seat.rank,
        ranks=len(boxes),
        pieces=boxes[seat.rank],
        kept=Retention(how.keep_last, how.keep_best, spec.run, how.epochs_before),
        data_digest=functools.partial(data_digest, spec.data),
        still=still,
        free_bytes=free_bytes,
        device=device,
        file_bytes=largest_file(model, boxes) * element_bytes(PARTS),
    )
