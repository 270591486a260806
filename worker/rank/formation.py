"""After the vote: the world of the new epoch, its engine, and the state in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor
from planner.plans.ranks import Seat
from worker.contract import TrainingSpec
from worker.engine.seam import Engine, Parts, StageBuild
from worker.model.initial_weights import initial_rows
from worker.rank.effects import Services
from worker.rank.held_state import HeldState
from worker.rank.switch import Switch
from worker.world.world import World


@dataclass(frozen=True, slots=True)
class Formation:
    """One rank's part in forming the epoch that its switch has committed to.

    Attributes:
        model: the shape.
        spec: how the job is trained.
        services: the effects of the rank.
        switch: the committed transaction.
        held: the state that the new engine takes its shards from.
        seat: of this rank in the new plan.
    """

    model: ModelShape
    spec: TrainingSpec
    services: Services
    switch: Switch
    held: HeldState
    seat: Seat

    def form_world(self, is_cancelled: Callable[[], bool]) -> World:
        """Meet the other ranks of the new plan; `is_cancelled` is asked while it waits."""
        switch = self.switch
        epoch, plan = switch.move.directive.epoch, switch.move.plan
        world = self.services.form_world(
            switch.store, epoch, self.seat.rank, self.model, plan, is_cancelled
        )
        switch.lap("form")
        return world

    def build_engine(self, world: World) -> Engine:
        """The engine of this rank's stage, with the state that it held or the first weights."""
        self.services.on_phase("build")
        switch = self.switch
        return self.services.build_engine(
            StageBuild(
                self.model, self.spec, switch.move.plan, self.seat, world, switch.step, self._source
            )
        )

    def verify(self, world: World, engine: Engine) -> str:
        """The digest of the state in the new engines; a collective of the new world.

        Raises:
            TransferFailed: it is not the digest from before the change.
        """
        after = HeldState(self.model)
        after.add_shards(self.seat, engine.shards())
        digest = self.switch.verify_after(world, after)
        self.switch.lap("build")
        return digest

    def _source(self, tensor: Tensor) -> Parts:
        seat, move = self.seat, self.switch.move
        if move.moves_state:
            return self.held.shard(tensor, seat, move.tp_degrees)
        size = tensor.shape[tensor.dim or 0]
        first, end = seat.slot * size // seat.tp, (seat.slot + 1) * size // seat.tp
        return (initial_rows(self.spec.seed, tensor, first, end),)
