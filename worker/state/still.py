"""The still window: between two updates nothing writes the state, so it can be read as it is.

A reader takes a chunk by copying it, and only then talks to a disk, so an update never waits for
one.  Before an update writes a tensor, what is still wanted of it is copied once, into memory that
is called staging.  Where that does not fit, the reading is dropped and training goes on.
Invariant: each chunk has the numbers of the boundary at which its reading began.
Source: design of checkpoints ("S2, the still window"); the readers' side is copy-on-write as in
fork, without its page faults in the update.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import torch

from planner.plans.pieces import Piece
from planner.wording import first_line
from worker.device.device import CPU, Device
from worker.engine.seam import Parts, Progress
from worker.model.boxes import chunks_of

ReadBox = Callable[[Piece], Parts]  # the parts of a box of the live state


class Dropped(Exception):
    """A reading ended before all was read: it was closed, or an update had no memory for it."""


@dataclass(slots=True)
class _Chunk:
    """A chunk that is wanted: live, then perhaps staged, and neither once it is read."""

    live: torch.Tensor | None
    staged: torch.Tensor | None = None


class Reading:
    """One reader's boxes of the state of one boundary, each to be read once.

    Attributes:
        staged_bytes: copied ahead of the reader so far.
        waited_s: seconds that updates waited for it, their copies included.
    """

    def __init__(
        self,
        boxes: Sequence[Piece],
        read: ReadBox,
        num_bytes: int,
        free_bytes: Callable[[], int],
        device: Device,
    ) -> None:
        self.staged_bytes, self.waited_s = 0, 0.0
        self._boxes, self._free_bytes, self._device = tuple(boxes), free_bytes, device
        self._since = device.mark()  # all that has written the state was given to the device before
        self._read: ReadBox | None = read
        self._live_bytes = num_bytes
        self._chunks: dict[Piece, list[list[_Chunk]]] = {}  # by part; cut when it is wanted
        self._live: dict[str, list[Piece]] = {}  # boxes of the tensors that no update has met
        for box in boxes:
            self._live.setdefault(box.tensor, []).append(box)
        self._changed = threading.Condition()
        self._copying: str | None = None  # the tensor of which the reader copies a chunk
        self._updates = 0  # that wait for it
        self._error: str | None = None

    @property
    def live_bytes(self) -> int:
        """Bytes that are neither read nor staged: an update may stage as many."""
        return self._live_bytes

    def chunks(self, box: Piece) -> list[Iterator[torch.Tensor]]:
        """The chunks of each part of a box, fp32, contiguous, in the host's memory.

        Raises:
            Dropped: while a chunk is taken.
        """
        with self._changed:
            parts = self._cut(box)
        return [self._taken(box.tensor, part) for part in parts]

    def stage(self) -> bool:
        """Copy all that is live beside the training; False: there is no memory for it.

        Raises:
            Dropped: see there.
        """
        if self._live_bytes > self._free_bytes():
            return False
        for box in self._boxes:
            with self._changed:
                parts = self._cut(box)
            for chunk in chain.from_iterable(parts):
                with self._copies(box.tensor):
                    self._stage(chunk)
        with self._changed:
            self._forget_live()
        return True

    def before_update(self, tensor: str) -> None:
        """Return once no number of a tensor is wanted from where it is."""
        if tensor not in self._live:
            return
        began_s = time.monotonic()
        with self._changed:
            self._updates += 1
            while self._copying == tensor:
                self._changed.wait()
            self._updates -= 1
            try:
                boxes = self._live.pop(tensor, ())
                if not self.staged_bytes and self._live_bytes > self._free_bytes():
                    raise MemoryError(f"{self._live_bytes:,} bytes are wanted")
                for box in boxes:
                    for chunk in chain.from_iterable(self._cut(box)):
                        self._stage(chunk)
                if not self._live:
                    self._forget_live()
            except Exception as error:  # whatever it is, training goes on
                self._drop(f"no memory for a copy of the state: {first_line(error)}")
            self._changed.notify_all()
        self.waited_s += time.monotonic() - began_s

    def close(self) -> None:
        """End it: nothing is wanted any more."""
        with self._changed:
            self._drop("")

    def _cut(self, box: Piece) -> list[list[_Chunk]]:
        self._check()
        if box not in self._chunks:
            assert self._read is not None  # all boxes are cut before it goes
            self._chunks[box] = [
                [*map(_Chunk, chunks_of(part.detach()))] for part in self._read(box)
            ]
        return self._chunks[box]

    def _taken(self, tensor: str, chunks: list[_Chunk]) -> Iterator[torch.Tensor]:
        for chunk in chunks:
            with self._copies(tensor):
                found = chunk.staged
                if found is None:
                    assert chunk.live is not None  # a chunk is read once
                    found = self._device.snapshot(chunk.live, self._since)
                    with self._changed:  # an update may stage another tensor meanwhile
                        self._live_bytes -= found.nbytes
                chunk.live = chunk.staged = None
            yield found

    def _stage(self, chunk: _Chunk) -> None:
        if chunk.live is None:
            return
        copy = self._device.snapshot(chunk.live, self._since)
        chunk.staged, chunk.live = copy, None
        with self._changed:
            self.staged_bytes += copy.nbytes
            self._live_bytes -= copy.nbytes

    @contextmanager
    def _copies(self, tensor: str) -> Iterator[None]:
        """The reader copies a chunk; updates that wait go first.

        An update does not wait for a reading that has ended, so a copy amid its end may be torn.
        """
        with self._changed:
            while self._updates:
                self._changed.wait()
            self._check()
            self._copying = tensor
        try:
            yield
        finally:
            with self._changed:
                self._copying = None
                self._changed.notify_all()
        self._check()

    def _check(self) -> None:
        """Raise Dropped if the reading has ended."""
        if self._error is not None:
            raise Dropped(self._error)

    def _drop(self, error: str) -> None:
        if self._error is None:
            self._error = error
        self._chunks.clear()
        self._live_bytes = 0
        self._forget_live()

    def _forget_live(self) -> None:
        """Keep no tensor of the live state any more."""
        self._live.clear()
        self._read = None


class StillState:
    """The window of one rank; it outlives every engine.  See `worker.engine.seam.Still`."""

    def __init__(self) -> None:
        self._readings: tuple[Reading, ...] = ()
        self._lock = threading.Lock()
        self._is_updating = False
        self._step: int | None = None

    @property
    def step(self) -> int | None:
        """Completed steps of the state at the last boundary; None: there was none."""
        return self._step

    def before_update(self, tensor: str) -> None:
        """See `Still`."""
        self._is_updating = True
        for reading in self._readings:
            reading.before_update(tensor)

    def boundary(self, progress: Progress) -> None:
        """See `Still`."""
        self._is_updating, self._step = False, progress.step

    def read(
        self,
        step: int,
        boxes: Sequence[Piece],
        read: ReadBox,
        num_bytes: int,
        free_bytes: Callable[[], int],
        device: Device = CPU,
    ) -> Reading:
        """Read the state of this boundary from now on; called by the thread that trains.

        Args:
            step: of the state.
            boxes: that are wanted, in the order of reading; first the tensors updated last.
            read: gives the parts of a box, live.
            num_bytes: of all boxes.
            free_bytes: gives the memory of the host that staging may take.
            device: that holds the state.

        Raises:
            RuntimeError: an update has begun and not ended, or the state is of another step.
        """
        if self._is_updating or self._step not in (None, step):
            raise RuntimeError(f"the state is not that of step {step}")
        reading = Reading(boxes, read, num_bytes, free_bytes, device)
        with self._lock:
            self._readings = (*self._readings, reading)
        return reading

    def end(self, reading: Reading) -> None:
        """Close a reading and free what it has staged."""
        reading.close()
        with self._lock:
            self._readings = tuple(one for one in self._readings if one is not reading)

    @property
    def staging_bytes(self) -> int:
        """The most that the readings under way may still allocate."""
        return sum(reading.live_bytes for reading in self._readings)
