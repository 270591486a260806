"""Measurements of each step under a run's output folder: JSON lines, and files for TensorBoard.

The agent of rank 0 writes, so that one does under every plan; an epoch has a file of its own, as
its rank 0 may be elsewhere than that of the epoch before.  What that one did not live to write
stands first in the file of the next epoch: all ranks see the same.
Invariant: training never waits for this disk; one that refuses costs the rows of that time at most,
and a line in the log.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from planner.cluster.gpu_types import HARDWARE
from planner.model.flops import flops_per_token
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from worker.agent.measuring.row_queue import RowQueue, Writer
from worker.agent.records import Records
from worker.contract import Directive
from worker.step_record import EvaluationRecord, StepRecord

LOG = logging.getLogger(__name__)
FOLDER = "measurements"  # under the output folder
TAIL_BYTES = 1 << 16  # of a file, in which its last line begins
SCALARS = (  # of a record, as TensorBoard shows them
    "loss", "held_out_loss", "gradient_norm", "learning_rate", "loss_scale", "tokens_per_s", "mfu",
    "step_s",
    "forward_s", "backward_s", "waiting_s", "sync_s", "memory_bytes",
)  # fmt: skip


class ModelUse:
    """Share of the peak arithmetic of a plan's GPUs that its model uses.

    Args:
        own_peak: FLOP/s of one rank of this machine, for a GPU type without a data sheet.
        emulates: the GPUs are not there, so that nothing uses a share of them.
    """

    def __init__(self, own_peak: float | None, emulates: bool = False) -> None:
        self._own_peak = own_peak
        self._emulates = emulates
        self._known: tuple[int, float | None] = (0, None)  # epoch, peak of its plan

    def measured(self, record: StepRecord, directive: Directive | None) -> StepRecord:
        """The record with its MFU, if the peak of every GPU of its plan is known.

        A directive of another epoch says nothing about the step.
        """
        if self._emulates or directive is None or directive.epoch != record.epoch:
            return record
        if self._known[0] != directive.epoch:
            is_half = directive.training.precision != "fp32"
            peak = peak_flops_s(Plan.from_json(directive.plan), self._own_peak, is_half)
            self._known = (directive.epoch, peak)
        peak = self._known[1]
        if peak is None or record.tokens is None or record.step_s <= 0:
            return record
        training = directive.training
        flops = flops_per_token(training.model_shape(), training.sequence_length) * record.tokens
        return record.model_copy(update={"mfu": flops / (record.step_s * peak)})


def peak_flops_s(plan: Plan, own_peak: float | None, is_half: bool) -> float | None:
    """The peaks of a plan's GPUs together, by data sheet; None if one is unknown."""
    total = 0.0
    for seat in RankMap.of(plan).seats:
        hardware = HARDWARE.get(seat.gpu_type)
        if hardware is not None:
            total += hardware.matrix_flops_s if is_half else hardware.full_flops_s
        elif own_peak is not None:
            total += own_peak
        else:
            return None
    return total


def row_of(record: StepRecord | EvaluationRecord, time_s: float) -> dict[str, Any]:
    """A record as a line of the file: its fields, when it came, and tokens a second."""
    # JSON has no NaN: such a loss is a text, as in reports.
    fields: dict[str, Any] = json.loads(record.model_dump_json(exclude_none=True))
    if isinstance(record, EvaluationRecord):
        return fields | {"held_out_loss": fields.pop("loss"), "time": time_s}
    derived = {"step_s": record.step_s, "tokens_per_s": record.tokens_per_s, "time": time_s}
    return fields | {key: value for key, value in derived.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Line:
    """A row for the file of an epoch, which may be later than its own."""

    row: Mapping[str, Any]
    epoch: int


class Measurements:
    """Writes records from threads of its own: lines at once, and files for TensorBoard beside them.

    Args:
        folder: the job's output folder.
        told: records that any rank of this pod told.
        run: id of the run, which each line and the name of each file for TensorBoard has.
    """

    def __init__(self, folder: Path, told: Records, run: str | None = None) -> None:
        self._folder = folder / FOLDER
        self._told, self._run = told, run
        self._epoch = 0  # of the newest record
        self._lines: RowQueue[_Line] = RowQueue(
            "lines of measurements", lambda: _Lines(self._folder)
        )
        self._board: RowQueue[Mapping[str, Any]] = RowQueue(
            "points for TensorBoard", lambda: _board(self._folder, run)
        )

    def add(self, record: StepRecord | EvaluationRecord) -> None:
        """Write a record of rank 0 soon; the first of an epoch after those that no file has."""
        now_s = time.time()
        if record.epoch > self._epoch:
            self._epoch = record.epoch
            for lost in self._told.before(record.epoch):
                self._lines.add(_Line(self._row(lost, now_s), record.epoch))
        row = self._row(record, now_s)
        self._lines.add(_Line(row, record.epoch))
        self._board.add(row)

    def _row(self, record: StepRecord | EvaluationRecord, time_s: float) -> Mapping[str, Any]:
        row = row_of(record, time_s)
        return row if self._run is None else {"run": self._run} | row

    def close(self, patience_s: float = 1.0, board_patience_s: float = 5.0) -> None:
        """Write what is left; a disk that takes nothing for so long costs the rest.

        Args:
            patience_s: without a further line.
            board_patience_s: without a further point; its package is slow to import.
        """
        self._lines.close(patience_s)
        self._board.close(board_patience_s)


class _Lines:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def add(self, line: _Line) -> None:
        row = line.row
        if not any(self._has(row, epoch) for epoch in range(row["epoch"], line.epoch)):
            append_whole(self._path(row, line.epoch), json.dumps(row).encode() + b"\n")

    def _path(self, row: Mapping[str, Any], epoch: int) -> Path:
        what = "evaluations" if "held_out_loss" in row else "steps"
        return self._folder / f"{what}-epoch-{epoch:04d}.jsonl"

    def _has(self, row: Mapping[str, Any], epoch: int) -> bool:
        """Whether the file of that epoch goes as far as the row."""
        try:
            with self._path(row, epoch).open("rb", buffering=0) as file:
                last = json.loads(_tail(file).splitlines()[-1])
        except (FileNotFoundError, IndexError, ValueError):
            return False
        is_ours = isinstance(last, dict) and last.get("run") == row.get("run")
        return is_ours and last.get("step", -1) >= row["step"]

    def close(self) -> None:
        """Each line is in its file already."""


def append_whole(path: Path, line: bytes) -> None:
    """Append a line, all of it or nothing; what an earlier try has left of one is cut off.

    Raises:
        OSError: it was not appended.
    """
    with path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        whole = _whole_bytes(file, end)
        if whole < end:
            file.truncate(whole)
        try:
            if file.write(line) < len(line):  # as a disk does that is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(whole)
            raise


def _whole_bytes(file: FileIO, end: int) -> int:
    """Bytes of the lines that are whole."""
    if not end:
        return 0
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return end
    tail = _tail(file)
    return end - len(tail) + tail.rfind(b"\n") + 1


def _tail(file: FileIO) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
    return file.read(TAIL_BYTES)


class _NoBoard:
    def add(self, row: Mapping[str, Any]) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Nothing is open."""


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, row: Mapping[str, Any]) -> None:
        for name in SCALARS:
            value = row.get(name)
            if isinstance(value, int | float):
                trained = row["step"] + ("held_out_loss" not in row)  # completed steps
                self._writer.add_scalar(name, value, trained, walltime=row["time"])

    def close(self) -> None:
        self._writer.close()


def _board(folder: Path, run: str | None) -> Writer[Mapping[str, Any]]:
    """Event files beside the lines, where the package that writes them is installed."""
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError:
        LOG.info("no files for TensorBoard are written; their package, tensorboardX, is missing")
        return _NoBoard()
    folder.mkdir(parents=True, exist_ok=True)
    suffix = f".{run}" if run is not None else ""
    return _TensorBoard(SummaryWriter(str(folder), flush_secs=10, filename_suffix=suffix))
