"""What one rank process holds: the state of which epoch, at which step, in an engine or not.

A rank trains with an engine; after a failure it may hold the same state without one, and, if it
voted and never learnt the outcome, in two layouts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.model.shape import ModelShape
from planner.plans.ranks import Seat
from worker.engine.seam import Engine, Progress
from worker.rank.held_state import HeldState
from worker.rank.switch import Switch


@dataclass(slots=True)
class RankState:
    """The state of one rank.

    Attributes:
        epoch: whose layout it holds; None: it holds nothing.
        also_epoch: a second layout, see `worker.contract.RankReport`.
        seat: in the plan of `epoch`; None: it has left.
        engine: that trains, or that broke.
        detached: state outside an engine.
    """

    epoch: int | None = None
    also_epoch: int | None = None
    seat: Seat | None = None
    engine: Engine | None = None
    detached: HeldState | None = None
    _progress: Progress = field(default_factory=Progress)

    @property
    def holds_state(self) -> bool:
        """Whether anything would be lost with this process."""
        return self.engine is not None or self.detached is not None

    @property
    def progress(self) -> Progress:
        """How far the state is."""
        return self.engine.progress if self.engine else self._progress

    def holdings(self, model: ModelShape) -> HeldState:
        """Everything that this rank can send."""
        if self.detached is not None:
            return self.detached
        held = HeldState(model)
        if self.engine is not None and self.seat is not None:
            held.add_shards(self.seat, self.engine.shards())
        return held

    def catch_up(self, step: int, gradient_norm: float | None) -> str | None:
        """Go to `step` completed steps, as the survivors agreed; one sentence if that cannot be.

        Once a norm is known anywhere, every rank has all its gradients: they are applied with it.
        """
        if self.progress.step == step - 1 and gradient_norm is not None and self.engine is not None:
            self.engine.apply(gradient_norm)
        elif self.progress.step != step and self.holds_state:
            at = self.progress.step
            return f"the recovery asks for step {step}, this rank is at {at} and cannot reach it"
        return None

    def hold_both(self, switch: Switch, held: HeldState) -> None:
        """Keep the old layout and, where this rank has a seat in it, the new: both are valid."""
        self.detached, epoch = held, switch.move.directive.epoch
        if switch.move.seat is None:
            return
        if self.epoch is None:
            self.epoch, self.seat = epoch, switch.move.seat
            self._progress = Progress(step=switch.step)
        else:
            self.also_epoch = epoch

    def commit(self, switch: Switch, held: HeldState) -> Engine | None:
        """Give the state to the new epoch, until an engine has it; answers the old engine."""
        engine, self.engine = self.engine, None
        self.detached, self._progress = held, Progress(step=switch.step)
        self.epoch, self.also_epoch = switch.move.directive.epoch, None
        self.seat = switch.move.seat
        return engine
