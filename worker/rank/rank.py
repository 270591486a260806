"""One rank process: waits warm, trains, pauses at a boundary, moves, resumes.

Halts with its state when its world breaks.

It hears directives from its agent between steps, never within one.  The step of a switch is agreed
by the ranks themselves: each says in the norm's all-reduce which epoch it is ready for, and when
all say the same, all stop at that boundary.
"""

from __future__ import annotations

import logging
import time
import traceback

from migration.transport import Transport
from planner.model.catalogue import find_model
from planner.model.shape import ModelShape
from planner.plans.ranks import Seat
from worker.contract import Directive, RankPhase, StepRecord, SwitchRecord, TrainingSpec
from worker.control.channel import Channel
from worker.engine.final_weights import write_weights
from worker.engine.seam import Engine
from worker.errors import EngineFailed, RendezvousFailed
from worker.rank.change import Change
from worker.rank.effects import Services
from worker.rank.formation import Formation
from worker.rank.held_state import HeldState
from worker.rank.messages import Messages
from worker.rank.preparation import Prepared
from worker.rank.rank_state import RankState
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
    if isinstance(error, RendezvousFailed):
        return f"{LOST_PEER}: {text}"
    return f"{type(error).__name__}: {text}"


class Rank:
    """The state machine of one rank process; its phases are `worker.contract.RankPhase`."""

    def __init__(self, channel: Channel, pod: str, slot: int, services: Services) -> None:
        self._services = services
        self._messages = Messages(channel, slot)
        self._change = Change(pod, slot, services)
        self._state = RankState()
        self._phase: RankPhase = "starting"
        self._world: World | None = None
        self._spec: TrainingSpec | None = None
        self._error: str | None = None
        self._record: SwitchRecord | None = None  # waits for the start of the first new step
        self._stopped_s: float | None = None

    def run(self) -> None:
        """Serve until the rank leaves or its agent is gone (SystemExit)."""
        self._report()
        while True:
            message = self._messages.next(self._patience_s())
            while message is not None:
                if message == "exit":
                    raise SystemExit(0)
                self._handle(message)
                message = self._messages.next(0)
            self._poll_preparation()
            if self._phase == "training":
                self._train()
            else:
                self._switch_if_told()

    def _patience_s(self) -> float | None:
        if self._phase == "training":
            return 0
        return POLL_S if self._change.is_preparing else None

    def _report(self) -> None:
        self._messages.report(self._phase, self._state, self._change, self._error)

    def _become(self, phase: RankPhase) -> None:
        self._phase = phase
        self._report()

    # -- directives

    def _handle(self, directive: Directive) -> None:
        if directive.phase == "abort":
            self._abort(directive.epoch)
        elif directive.epoch > max(self._state.epoch or 0, self._change.abort_epoch):
            self._prepare(directive)
            if directive.phase == "switch":
                self._change.switch_epoch = directive.epoch

    def _prepare(self, directive: Directive) -> None:
        if self._change.is_preparing_for(directive):
            return
        self._spec = directive.training
        self._error = None
        if directive.resume is not None and self._phase == "halted":
            resume = directive.resume
            self._error = self._state.catch_up(resume.step, resume.gradient_norm)
        self._change.prepare(self._model(), directive)

    def _poll_preparation(self) -> None:
        is_new, error = self._change.poll()
        if error is not None:
            self._error = error
            self._report()
        elif is_new:
            self._become("prepared" if self._phase == "starting" else self._phase)

    def _abort(self, epoch: int) -> None:
        if self._change.abort(epoch):
            if not self._state.holds_state:
                raise SystemExit(0)  # a joiner of an epoch that never came holds nothing
            self._report()

    # -- training

    def _train(self) -> None:
        engine, spec, epoch = self._state.engine, self._spec, self._state.epoch
        assert engine is not None
        assert spec is not None
        assert epoch is not None
        if engine.progress.step >= spec.steps:
            self._finish(engine, spec)
            return
        start_s = time.monotonic()
        if self._record is not None:
            self._messages.switched(self._record.model_copy(update={"first_step_s": start_s}))
            self._record = None
        try:
            result = engine.train_step(self._change.ready_epoch)
        except Exception as error:  # DeepSpeed, gloo or ours: the world is broken, whatever it was
            self._halt(error)
            return
        self._stopped_s = time.monotonic()
        self._messages.step(
            StepRecord(
                epoch=epoch,
                step=engine.progress.step - 1,
                loss=result.loss,
                gradient_norm=result.gradient_norm,
                start_s=start_s,
                end_s=self._stopped_s,
            )
        )
        if result.agreed_epoch is not None:
            prepared = self._change.prepared
            assert prepared is not None  # this rank said that it was ready
            self._switch(prepared, engine.progress.step)

    def _finish(self, engine: Engine, spec: TrainingSpec) -> None:
        seat = self._state.seat
        assert seat is not None
        if spec.output is not None:
            write_weights(spec.output, self._model(), seat, engine.shards())
        self._change.forget()
        self._become("done")

    def _halt(self, error: BaseException) -> None:
        """Leave the broken world at once, so that all who wait for it fail too; keep the state."""
        self._error = _in_one_line(error)
        if not self._error.startswith(LOST_PEER):  # a peer that went is no fault of this process
            _log.error("the world of epoch %s broke", self._state.epoch, exc_info=error)
        _log.warning("halted at step %d: %s", self._state.progress.step, self._error)
        # A frame would keep a group, and so its connections, alive.
        traceback.clear_frames(error.__traceback__)
        self._leave_world()
        self._change.forget()
        self._stopped_s = time.monotonic()
        self._become("halted")

    def _leave_world(self) -> None:
        if self._world is not None:
            self._services.leave_world(self._world)
            self._world = None

    # -- changing the epoch

    def _switch_if_told(self) -> None:
        """Switch where training agrees on no boundary: a joiner, a job's start, a recovery."""
        prepared = self._change.prepared
        if prepared is None:
            return
        directive = prepared.move.directive
        if not prepared.move.waits_for_boundary:
            self._switch(prepared, directive.resume.step if directive.resume else 0)
            return
        key = f"epoch{directive.epoch}/boundary"
        try:
            if prepared.store.check([key]):
                self._switch(prepared, int(prepared.store.get(key)))
        except RuntimeError as error:  # the store is gone: only the preparation is lost
            self._error = f"the store of epoch {directive.epoch} is gone: {error}"
            self._change.forget()
            self._report()

    def _switch(self, prepared: Prepared, step: int) -> None:
        move, store, transport = prepared
        epoch, old_phase = move.directive.epoch, self._phase
        self._become("switching")
        switch = Switch(self._model(), move, store, transport, self._services, step)
        held = self._state.holdings(self._model())
        try:
            if move.waits_for_boundary and self._state.engine is not None:
                store.set(f"epoch{epoch}/boundary", str(step))
            outcome = switch.run(held, lambda: self._is_aborted(epoch))
        except Undecided as error:
            self._state.hold_both(switch, held)
            self._halt(error)
            return
        except Exception as error:  # not voted: the old epoch stands
            _log.warning("the change failed before its vote", exc_info=error)
            self._error = f"epoch {epoch} was not reached: {error}"
            outcome = "abort"
        if outcome == "abort":
            self._keep_old_epoch(old_phase, transport)
            return
        self._commit(switch, held, transport)

    def _keep_old_epoch(self, phase: RankPhase, transport: Transport) -> None:
        """Go on with the old epoch, untouched."""
        transport.close()
        self._change.forget()
        if not self._state.holds_state:
            self._become("left")
            raise SystemExit(0)
        self._become(phase)

    def _is_aborted(self, epoch: int) -> bool:
        message = self._messages.next(0)
        if isinstance(message, Directive):
            if message.phase == "abort":
                self._change.abort_epoch = max(self._change.abort_epoch, message.epoch)
            elif message.epoch > epoch:
                self._handle(message)
        return self._change.abort_epoch >= epoch

    def _commit(self, switch: Switch, held: HeldState, transport: Transport) -> None:
        """The outcome is commit: from here on the state belongs to the new epoch."""
        state = self._state
        stopped_s = self._stopped_s if state.holds_state else None
        transport.close()
        self._change.forget()
        old_engine = state.commit(switch, held)
        self._error = None
        if state.seat is None:
            self._messages.switched(self._messages.record(switch, stopped_s, None))
            self._leave_world()
            self._become("left")
            raise SystemExit(0)
        try:
            digest = self._form(switch, held, state.seat, old_engine)
        except Exception as error:  # the outcome stands: the state is held, an epoch must be formed
            state.engine = None
            self._halt(error)
            return
        state.detached = None
        self._record = self._messages.record(switch, stopped_s, digest)
        self._become("training")

    def _form(self, switch: Switch, held: HeldState, seat: Seat, old_engine: Engine | None) -> str:
        """Leave the old world, form the new one and its engine; the digest of the state in it."""
        spec, epoch = self._spec, switch.move.directive.epoch
        assert spec is not None
        self._services.on_phase("form")
        self._leave_world()
        if old_engine is not None:
            old_engine.release()  # `held` keeps its tensors until the new engine has them
        formation = Formation(self._model(), spec, self._services, switch, held, seat)
        self._world = formation.form_world(lambda: self._is_aborted(epoch))
        engine = self._state.engine = formation.build_engine(self._world)
        return formation.verify(self._world, engine)

    def _model(self) -> ModelShape:
        if self._spec is None:
            raise EngineFailed("no directive has said which model to train")
        return find_model(self._spec.model)
