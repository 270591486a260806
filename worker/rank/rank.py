"""One rank process: waits warm, trains, pauses at a boundary, moves, resumes.

Halts with its state when its world breaks.

It hears directives from its agent between steps, never within one.  The step of a switch is agreed
by the ranks themselves: each says in the norm's all-reduce which epoch it is ready for, and when
all say the same, all stop at that boundary.
"""

from __future__ import annotations

import logging
import os
import time
import traceback

from migration.transport import Transport
from planner.model.catalogue import find_model
from planner.model.shape import ModelShape
from planner.model.tensors import Tensor
from planner.plans.ranks import Seat
from worker.contract import Directive, RankPhase, RankReport, StepRecord, SwitchRecord, TrainingSpec
from worker.control.channel import Channel, Message
from worker.engine.final_weights import write_weights
from worker.engine.seam import Engine, Parts, StageBuild
from worker.errors import EngineFailed, MeetingFailed
from worker.model.initial_weights import initial_rows
from worker.rank.effects import Services
from worker.rank.held_state import HeldState
from worker.rank.preparation import Preparation
from worker.rank.standing import Standing
from worker.rank.switch import Switch, Undecided
from worker.world.world import World

_log = logging.getLogger(__name__)
LOST_PEER = "lost a peer"
POLL_S = 0.003  # while a preparation or a boundary is awaited


def _in_one_line(error: BaseException) -> str:
    """What happened, without gloo's source path and advice."""
    text = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, RuntimeError) and "/gloo/" in text:
        return f"{LOST_PEER}: {text.partition('] ')[2].partition('. ')[0]}"
    if isinstance(error, MeetingFailed):
        return f"{LOST_PEER}: {text}"
    return f"{type(error).__name__}: {text}"


class Rank:
    """The state machine of one rank process; its phases are `worker.contract.RankPhase`."""

    def __init__(self, channel: Channel, pod: str, slot: int, services: Services) -> None:
        self._channel, self._pod, self._slot, self._services = channel, pod, slot, services
        self._started_s = time.monotonic()
        self._phase: RankPhase = "starting"
        self._standing = Standing()
        self._world: World | None = None
        self._preparation: Preparation | None = None
        self._announced: int | None = None
        self._failed_epoch: int | None = None
        self._switch_epoch: int | None = None
        self._abort_epoch = 0
        self._spec: TrainingSpec | None = None
        self._error: str | None = None
        self._record: SwitchRecord | None = None
        self._stopped_s: float | None = None

    # -- what the agent hears

    def _report(self) -> None:
        standing, progress = self._standing, self._standing.progress
        report = RankReport(
            slot=self._slot,
            pid=os.getpid(),
            started_s=self._started_s,
            phase=self._phase,
            rank=standing.seat.rank if standing.seat else None,
            epoch=standing.epoch,
            also_epoch=standing.also_epoch,
            pending_epoch=self._announced,
            failed_epoch=self._failed_epoch,
            step=progress.step,
            gradients_step=progress.gradients_step,
            norm_step=progress.norm[0] if progress.norm else None,
            gradient_norm=progress.norm[2] if progress.norm else None,
            error=self._error,
            overruns=standing.engine.overruns() if standing.engine else 0,
        )
        self._channel.send("report", rank=report.model_dump())

    def _become(self, phase: RankPhase) -> None:
        self._phase = phase
        self._report()

    # -- the loop

    def run(self) -> None:
        """Serve until the rank leaves or its agent is gone (SystemExit)."""
        self._report()
        while True:
            message = self._channel.receive(self._patience_s())
            while message is not None:
                self._obey(message)
                message = self._channel.receive(0)
            self._notice_preparation()
            if self._phase == "training":
                self._train()
            else:
                self._switch_if_told()

    def _patience_s(self) -> float | None:
        if self._phase == "training":
            return 0
        return POLL_S if self._preparation is not None else None

    def _obey(self, message: Message) -> None:
        if message["type"] == "exit":
            raise SystemExit(0)
        directive = Directive.model_validate(message["directive"])
        if directive.phase == "abort":
            self._abort(directive.epoch)
        elif directive.epoch > max(self._standing.epoch or 0, self._abort_epoch):
            self._prepare(directive)
            if directive.phase == "switch":
                self._switch_epoch = directive.epoch

    def _prepare(self, directive: Directive) -> None:
        current = self._preparation
        if current is not None and (current.epoch, current.directive.store) == (
            directive.epoch,
            directive.store,
        ):
            return
        if current is not None:
            current.drop()
        self._spec = directive.training
        self._error = None
        self._announced = None
        if directive.resume is not None and self._phase == "halted":
            resume = directive.resume
            self._error = self._standing.catch_up(resume.step, resume.gradient_norm)
        self._preparation = Preparation(
            self._model(), directive, self._pod, self._slot, self._services
        )

    def _notice_preparation(self) -> None:
        preparation = self._preparation
        if preparation is None or preparation.running:
            return
        if preparation.error is not None:
            self._error, self._failed_epoch = preparation.error, preparation.epoch
            self._preparation = None
            self._switch_epoch = None
            self._report()
        elif self._announced != preparation.epoch:
            self._announced = preparation.epoch
            self._become("prepared" if self._phase == "starting" else self._phase)

    def _abort(self, epoch: int) -> None:
        self._abort_epoch = max(self._abort_epoch, epoch)
        if self._preparation is not None and self._preparation.epoch == epoch:
            self._forget_preparation()
            if not self._standing.holds_state:
                raise SystemExit(0)  # a joiner of an epoch that never came holds nothing
            self._report()

    def _forget_preparation(self) -> None:
        if self._preparation is not None:
            self._preparation.drop()
        self._preparation = None
        self._announced = None
        self._switch_epoch = None

    # -- training

    def _train(self) -> None:
        engine, spec = self._standing.engine, self._spec
        assert engine is not None
        assert spec is not None
        if engine.progress.step >= spec.steps:
            self._finish(engine, spec)
            return
        ready = self._switch_epoch if self._announced == self._switch_epoch else None
        start_s = time.monotonic()
        if self._record is not None:
            record = self._record.model_copy(update={"first_step_s": start_s})
            self._channel.send("switch", record=record.model_dump())
            self._record = None
        try:
            result = engine.train_step(ready)
        except Exception as error:  # DeepSpeed, gloo or ours: the world is broken, whatever it was
            self._halt(error)
            return
        self._stopped_s = time.monotonic()
        assert self._standing.epoch is not None
        step = StepRecord(
            epoch=self._standing.epoch,
            step=engine.progress.step - 1,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            start_s=start_s,
            end_s=self._stopped_s,
        )
        self._channel.send("step", record=step.model_dump())
        if result.agreed_epoch is not None:
            self._switch(engine.progress.step)

    def _finish(self, engine: Engine, spec: TrainingSpec) -> None:
        seat = self._standing.seat
        assert seat is not None
        if spec.output is not None:
            write_weights(spec.output, self._model(), seat, engine.shards())
        self._forget_preparation()
        self._become("done")

    def _halt(self, error: BaseException) -> None:
        """Leave the broken world at once, so that whoever waits here errs too; keep the state."""
        self._error = _in_one_line(error)
        if not self._error.startswith(LOST_PEER):  # a peer that went is no fault of this process
            _log.error("the world of epoch %s broke", self._standing.epoch, exc_info=error)
        _log.warning("halted at step %d: %s", self._standing.progress.step, self._error)
        # A frame would keep a group, and so its connections, alive.
        traceback.clear_frames(error.__traceback__)
        self._leave_world()
        self._forget_preparation()
        self._stopped_s = time.monotonic()
        self._become("halted")

    def _leave_world(self) -> None:
        if self._world is not None:
            self._services.leave_world(self._world)
            self._world = None

    # -- changing the epoch

    def _switch_if_told(self) -> None:
        """Switch where no boundary is agreed by training.

        A joiner, the start of a job, a recovery.
        """
        preparation = self._preparation
        if (
            preparation is None
            or self._announced is None
            or self._switch_epoch != preparation.epoch
        ):
            return
        result = preparation.result
        if result is None:
            return
        move, store, _ = result
        directive = move.directive
        if not move.waits_for_boundary:
            self._switch(directive.resume.step if directive.resume else 0)
            return
        key = f"epoch{directive.epoch}/boundary"
        try:
            if store.check([key]):
                self._switch(int(store.get(key)))
        except RuntimeError as error:  # the store is gone: only the preparation is lost
            self._error = f"the store of epoch {directive.epoch} is gone: {error}"
            self._forget_preparation()
            self._report()

    def _switch(self, step: int) -> None:
        preparation = self._preparation
        result = preparation.result if preparation else None
        assert result is not None  # this rank said that it was ready
        move, store, transport = result
        old_phase = self._phase
        self._become("switching")
        switch = Switch(self._model(), move, store, transport, self._services, step)
        held = self._standing.holdings(self._model())
        try:
            if move.waits_for_boundary and self._standing.engine is not None:
                store.set(f"epoch{move.directive.epoch}/boundary", str(step))
            outcome = switch.run(held, lambda: self._told_to_abort(move.directive.epoch))
        except Undecided as error:
            self._standing.hold_both(switch, held)
            self._halt(error)
            return
        except Exception as error:  # not voted: the old epoch stands
            _log.warning("the change failed before its vote", exc_info=error)
            self._error = f"epoch {move.directive.epoch} was not reached: {error}"
            outcome = "abort"
        if outcome == "abort":
            self._return(old_phase, transport)
            return
        self._flip(switch, held, transport)

    def _return(self, phase: RankPhase, transport: Transport) -> None:
        """Go on with the old epoch, untouched."""
        transport.close()
        self._forget_preparation()
        if not self._standing.holds_state:
            self._become("left")
            raise SystemExit(0)
        self._become(phase)

    def _told_to_abort(self, epoch: int) -> bool:
        message = self._channel.receive(0)
        if message is not None and message["type"] == "directive":
            directive = message["directive"]
            if directive["phase"] == "abort":
                self._abort_epoch = max(self._abort_epoch, directive["epoch"])
            elif directive["epoch"] > epoch:
                self._obey(message)
        return self._abort_epoch >= epoch

    def _flip(self, switch: Switch, held: HeldState, transport: Transport) -> None:
        """The outcome is commit: from here on the state belongs to the new epoch."""
        standing = self._standing
        stopped_s = self._stopped_s if standing.holds_state else None
        transport.close()
        self._forget_preparation()
        old_engine = standing.commit(switch, held)
        self._error = None
        if standing.seat is None:
            self._leave(switch, stopped_s)
            raise SystemExit(0)
        try:
            digest = self._form(switch, held, standing.seat, old_engine)
        except Exception as error:  # the outcome stands: the state is held, an epoch must be formed
            standing.engine = None
            self._halt(error)
            return
        standing.loose = None
        self._record = self._switch_record(switch, stopped_s, digest)
        self._become("training")

    def _form(self, switch: Switch, held: HeldState, seat: Seat, old_engine: Engine | None) -> str:
        """Leave the old world, form the new one and its engine; the digest of the state in it."""
        services, epoch = self._services, switch.move.directive.epoch
        services.on_phase("form")
        self._leave_world()
        if old_engine is not None:
            old_engine.release()  # `held` keeps its tensors until the new engine has them
        plan, given_up = switch.move.plan, lambda: self._told_to_abort(epoch)
        world = services.form_world(switch.store, epoch, seat.rank, self._model(), plan, given_up)
        self._world = world
        switch.lap("form")
        services.on_phase("build")
        engine = self._build(switch, held, seat, world)
        self._standing.engine = engine
        after = HeldState(self._model())
        after.add_shards(seat, engine.shards())
        digest = switch.verify_after(world, after)
        switch.lap("build")
        return digest

    def _build(self, switch: Switch, held: HeldState, seat: Seat, world: World) -> Engine:
        spec = self._spec
        assert spec is not None

        def source(tensor: Tensor) -> Parts:
            if switch.move.moves_state:
                return held.shard(tensor, seat, switch.move.tp_degrees)
            size = tensor.shape[tensor.dim or 0]
            return (
                initial_rows(
                    spec.seed,
                    tensor,
                    seat.slot * size // seat.tp,
                    (seat.slot + 1) * size // seat.tp,
                ),
            )

        model, plan = self._model(), switch.move.plan
        return self._services.build_engine(
            StageBuild(model, spec, plan, seat, world, switch.step, source)
        )

    def _leave(self, switch: Switch, stopped_s: float | None) -> None:
        record = self._switch_record(switch, stopped_s, None)
        self._channel.send("switch", record=record.model_dump())
        self._leave_world()
        self._become("left")

    def _switch_record(
        self, switch: Switch, stopped_s: float | None, digest: str | None
    ) -> SwitchRecord:
        return SwitchRecord(
            epoch=switch.move.directive.epoch,
            slot=self._slot,
            pid=os.getpid(),
            step=switch.step,
            stopped_s=stopped_s,
            laps=switch.laps,
            bytes_sent=switch.transport.bytes_sent,
            bytes_received=switch.transport.bytes_received,
            bytes_needed=switch.move.bytes_needed,
            state_digest_before=switch.digest,
            state_digest_after=digest,
        )

    def _model(self) -> ModelShape:
        if self._spec is None:
            raise EngineFailed("no directive has said which model to train")
        return find_model(self._spec.model)
