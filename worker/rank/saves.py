"""The checkpoints that a rank saves while it trains, as its job's settings ask."""

from __future__ import annotations

from pathlib import Path

from planner.model.shape import ModelShape
from worker.checkpoint.boxes import written
from worker.checkpoint.folder_vault import FolderVault
from worker.checkpoint.manifest import Manifest
from worker.checkpoint.saver import Saver
from worker.contract import TrainingSpec
from worker.engine.seam import Progress
from worker.rank.move import Move
from worker.rank.rank_state import Layout
from worker.state.held_state import HeldState


class Saves:
    """The saver of the epoch that trains; a job without checkpoints has none."""

    def __init__(self) -> None:
        self._saver: Saver | None = None
        self._plan_digest = ""

    def begin(self, model: ModelShape, move: Move) -> None:
        """Follow a new epoch; the save of the epoch before is given up."""
        self.give_up()
        self._saver = None
        how, seat = move.directive.training.checkpoint, move.seat
        if how is None or seat is None:
            return
        pieces = written(model, move.plan)
        self._plan_digest = move.plan.digest
        self._saver = Saver(
            vault=FolderVault(Path(how.path)),
            model=model,
            epoch=move.directive.epoch,
            rank=seat.rank,
            ranks=len(pieces),
            pieces=pieces[seat.rank],
            keep_last=how.keep_last,
        )

    def give_up(self) -> None:
        """End the save under way."""
        if self._saver is not None:
            self._saver.give_up()

    def at_boundary(self, spec: TrainingSpec, progress: Progress, layout: Layout | None) -> None:
        """Begin a save where one is due; training waits for a copy."""
        saver, how = self._saver, spec.checkpoint
        if saver is None or how is None or layout is None or progress.step % how.every_steps:
            return
        model = spec.model_shape()
        held = HeldState(model)
        held.add_shards(layout.seat, layout.shards)
        about = Manifest(
            step=progress.step,
            updates=progress.updates,
            loss_scale=progress.loss_scale,
            good_steps=progress.good_steps,
            training=spec.model_dump(mode="json"),
            data_digest="",
            shape=model.to_json(),
            plan_digest=self._plan_digest,
            files={},
            boxes=(),
        )
        saver.begin(about, held.read)
