"""State of one rank process: of which epoch, at which step, in an engine or not.

The tensors of the state belong to this table; engines train them in place and come and go.  After
a vote whose outcome it never learnt, a rank holds the same state in two layouts at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.model.shape import ModelShape
from planner.plans.ranks import RankMap, Seat
from worker.contract import Resume, TrainingSpec
from worker.device.device import Device
from worker.engine.seam import Buffers, Engine, Parts, Progress, StepResult
from worker.errors import EngineFailed
from worker.rank.memory import note_memory
from worker.rank.preparation import Prepared
from worker.state.held_state import HeldState
from worker.state.still import StillState


@dataclass(frozen=True, slots=True)
class Layout:
    """The state as one epoch's plan lays it out on this rank.

    Attributes:
        epoch: of the plan.
        seats: of all its ranks.
        seat: of this rank in it.
        shards: {tensor name: its parts}.
        buffers: that its engine works on.
    """

    epoch: int
    seats: tuple[Seat, ...]
    seat: Seat
    shards: Mapping[str, Parts]
    buffers: Buffers | None = None


@dataclass(slots=True, kw_only=True)
class RankState:
    """The state of one rank.

    Attributes:
        layout: that it trains, or trained before its world broke; None: it holds nothing.
        also: a second layout, see `worker.contract.RankReport`.
        engine: that trains `layout`, or that broke.
        progress: how far the state is.
        cut_s: when the step began in which its world broke, by the monotonic clock.
        still: who reads the state between two updates.
    """

    layout: Layout | None = None
    also: Layout | None = None
    engine: Engine | None = None
    progress: Progress = field(default_factory=Progress)
    still: StillState = field(default_factory=StillState)
    cut_s: float | None = None

    def explain(self, error: BaseException, spec: TrainingSpec | None, device: Device) -> None:
        """Note on an error of the training which stage it was, in case memory has ended."""
        if self.layout is not None and spec is not None:
            seat, epoch = self.layout.seat, self.layout.epoch
            note_memory(error, spec.model_shape(), seat, spec.precision, epoch, device)

    @property
    def epoch(self) -> int | None:
        """Of the layout."""
        return self.layout.epoch if self.layout else None

    @property
    def also_epoch(self) -> int | None:
        """Of the second layout."""
        return self.also.epoch if self.also else None

    @property
    def seat(self) -> Seat | None:
        """In the layout."""
        return self.layout.seat if self.layout else None

    def holdings(self, model: ModelShape) -> HeldState:
        """Everything that this rank can send."""
        held = HeldState(model)
        for layout in (self.layout, self.also):
            if layout is not None:
                held.add_shards(layout.seat, layout.shards, layout.buffers)
        return held

    def catch_up(self, resume: Resume) -> Exception | None:
        """Go to the step that the survivors agreed on; why that cannot be, or has failed.

        Once a norm is known anywhere, every rank has all its gradients: they are applied with it.
        """
        at, step, norm = self.progress.step, resume.step, resume.gradient_norm
        if at == step - 1 and norm is not None and self.engine is not None:
            try:
                self.engine.apply(norm)
            except Exception as error:
                return error
        elif at != step and self.layout is not None:
            return EngineFailed(
                f"the recovery asks for step {step}, this rank is at {at} and cannot reach it"
            )
        return None

    def take_cut_step(self) -> tuple[StepResult, float] | None:
        """The step in which the world broke and when it began, once, if its update is here.

        Only who knew what all ranks know has it: its loss.
        """
        result, start_s, self.cut_s = self.progress.result, self.cut_s, None
        if result is None or start_s is None or result.met_s < start_s:
            return None
        return (result, start_s) if result.step == self.progress.step - 1 else None

    def hold_also(self, layout: Layout, progress: Progress) -> None:
        """Keep the new layout beside the old one: both are valid until the outcome is known."""
        if self.layout is None:
            self.layout, self.progress = layout, progress
        else:
            self.also = layout

    def commit(
        self, layout: Layout | None, engine: Engine | None, progress: Progress
    ) -> Engine | None:
        """Give the state to the new layout and its engine; answers the old engine."""
        old, self.engine = self.engine, engine
        self.layout, self.also, self.progress, self.cut_s = layout, None, progress, None
        self.still.boundary(progress)
        if engine is not None:
            engine.progress = progress
        return old


def layout_of(prepared: Prepared) -> Layout | None:
    """This rank's holdings after the change."""
    if prepared.successor is None:
        return None
    target, move = prepared.successor.target, prepared.move
    seats = RankMap.of(move.plan).seats
    return Layout(move.directive.epoch, seats, target.seat, target.shards, target.buffers)
