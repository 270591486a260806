"""One rank process: waits warm, trains, moves, resumes; halts when its world breaks.

It hears directives from its agent between steps, never within one.  The step of a switch is agreed
by the ranks themselves: each says in the norm's all-reduce which epoch it is ready for, and when
all say the same, all stop at that boundary.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from worker.contract import Directive, RankPhase, SwitchRecord, TrainingSpec
from worker.control.calls import Calls
from worker.control.channel import Channel
from worker.control.messages import Follow, HaltNow, Save, Suspend, ToProcess
from worker.device.device import fault_of
from worker.engine.seam import SUSPEND, Engine
from worker.error_kinds import Trouble, cause_of, has_lost_its_state
from worker.errors import NonFinite
from worker.log_lines import note
from worker.rank.change import Change
from worker.rank.final_save import FinalSave
from worker.rank.messages import Messages
from worker.rank.preparation import Prepared
from worker.rank.rank_state import RankState, layout_of
from worker.rank.saves import Saves
from worker.rank.services import Services
from worker.rank.switch import Switch, Undecided
from worker.weights.ending import ending
from worker.world.world import World

T = TypeVar("T")
LOG = logging.getLogger(__name__)
POLL_S, SAVING_POLL_S = 0.003, 0.05  # while a preparation, a boundary or a save is awaited
STANDING = ("halted", "saving", "suspending", "suspended", "done")  # it can catch up, if it must


class Rank:
    """The state machine of one rank process; its phases are `worker.contract.RankPhase`."""

    def __init__(self, channel: Channel, pod: str, slot: int, services: Services) -> None:
        self._services, self._activity = services, services.activity
        self._calls = Calls(services.activity)
        self._state = RankState()
        self._change = Change(pod, slot, services, self._state.still)
        self._messages = Messages(channel, slot, self._activity, self._hear_at_once)
        self._messages.wire = services.payload.about
        self._phase: RankPhase = "starting"
        self._world: World | None = None
        self._spec: TrainingSpec | None = None  # of the epoch that it trains, or trained
        self._trouble = Trouble()
        self._told_to_halt: str | None = None
        self._record: SwitchRecord | None = None  # waits for the start of the first new step
        self._stopped_s: float | None = None  # end of the last step, or start of a first one cut
        self._halted_s: float | None = None  # when its loss was noticed, until it trains again
        self._final, self._saves = FinalSave(), Saves()

    def run(self) -> None:
        """Serve until the rank leaves or its agent is gone (SystemExit)."""
        self._report()
        while True:
            directive = self._messages.next(self._patience_s())
            while directive is not None:
                self._handle(directive)
                directive = self._messages.next(0)
            self._poll_preparation()
            self._poll_saves()
            self._poll_end()
            if self._phase == "training":
                self._train()
            else:
                self._switch_if_told()

    def _hear_at_once(self, message: ToProcess) -> None:
        """Work that cannot wait for the end of a step; called in the mailbox's thread."""
        match message:
            case HaltNow():
                # One that has halted may be forming the next epoch's groups: no word for it.
                if message.epoch >= (self._state.epoch or 0) and self._phase != "halted":
                    self._told_to_halt = message.sentence
                    if (world := self._world) is not None:
                        world.break_(message.sentence, limit_s=0.0)  # this thread tells of life
                    self._change.end_waits()
            case Save() | Suspend():
                self._saves.hear(message)
            case Follow() if message.directive.phase == "abort":
                self._change.call_off(message.directive.epoch)

    def _patience_s(self) -> float | None:
        if self._phase == "training":
            return 0
        if self._change.is_preparing:
            return POLL_S
        is_saving = self._saves.is_running or self._phase in ("saving", "suspending")
        return SAVING_POLL_S if is_saving else None

    def _report(self) -> None:
        self._messages.report(self._phase, self._state, self._change, self._trouble)

    def _become(self, phase: RankPhase) -> None:
        self._phase = phase
        self._activity.begin(phase)
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
        self._trouble = Trouble()
        resume = directive.resume if self._phase in STANDING else None
        if resume and (error := self._state.catch_up(resume)):
            self._change.failed_epoch, self._trouble = directive.epoch, Trouble.of(error)
            self._report()
            if has_lost_its_state(error):
                raise SystemExit(1)
            return
        self._messages.cut_step(self._state, self._spec)
        model = directive.training.model_shape()
        self._change.prepare(model, directive, self._state.holdings(model))

    def _poll_preparation(self) -> None:
        is_new, error = self._change.poll()
        if error is not None:
            self._trouble = Trouble.of(error, f"cannot prepare epoch {self._change.failed_epoch}: ")
            self._report()
            self._settle()
        elif is_new:
            self._become("prepared" if self._phase == "starting" else self._phase)

    def _abort(self, epoch: int) -> None:
        if self._change.abort(epoch) or self._change.failed_epoch == epoch:
            self._report()
        if self._state.layout is None and not self._change.is_preparing:
            raise SystemExit(0)  # a joiner of an epoch that never came holds nothing
        self._settle()

    # -- training

    def _train(self) -> None:
        engine, spec, epoch = self._state.engine, self._spec, self._state.epoch
        assert engine is not None
        assert spec is not None
        assert epoch is not None
        start_s, is_trained = time.monotonic(), engine.progress.step >= spec.steps
        if self._record is not None:
            update = {} if is_trained else {"first_step_s": start_s}
            self._messages.switched(self._record.model_copy(update=update))
            self._record = None
            self._services.device.begin_epoch()  # by now the old engine is freed
        if spec.evaluates_at(engine.progress.step):
            if not self._evaluate(engine, spec, epoch):
                return None
            start_s = time.monotonic()
        if is_trained:
            return self._finish(spec)
        try:
            wish = self._change.ready_epoch or self._saves.ready()
            result = self._call(lambda: engine.train_step(wish))
        except NonFinite as error:  # every rank met it at one all-reduce, so the world stands
            return self._diverge(error, spec)
        except Exception as error:  # DeepSpeed, gloo or ours: the world is broken, whatever it was
            self._state.cut_s, self._stopped_s = start_s, self._stopped_s or start_s
            return self._halt(error)
        self._stopped_s = time.monotonic()
        self._messages.step(epoch, spec, result, (start_s, self._stopped_s))
        agreed = result.agreed_epoch
        self._saves.at_boundary(spec, engine.progress, self._state.layout, agreed)
        if agreed == SUSPEND:
            self._become("suspending")
        elif agreed is not None and agreed > 0:
            prepared = self._change.prepared
            next_steps = prepared.move.directive.training.steps if prepared is not None else 0
            if engine.progress.step < max(spec.steps, next_steps):
                assert prepared is not None  # this rank said that it was ready
                self._switch(prepared)
        return None

    def _evaluate(self, engine: Engine, spec: TrainingSpec, epoch: int) -> bool:
        """Evaluate the model as it is; whether the world still stands.

        It happens before a step, so that whatever ranks form the world at a boundary evaluate there
        together; after a loss they may do so once more, with the same result.
        """
        start_s, progress, world = time.monotonic(), engine.progress, self._world
        assert world is not None
        try:
            found, is_best = self._call(lambda: self._saves.evaluate(engine, world))
        except Exception as error:  # as in a step
            self._halt(error)
            return False
        self._messages.evaluated(epoch, progress.step, found, start_s)
        self._saves.evaluated(spec, progress, self._state.layout, found.loss, is_best)
        return True

    def _finish(self, spec: TrainingSpec) -> None:
        """All steps are trained: write this rank's part of the final weights, if it has one."""
        layout, world, engine = self._state.layout, self._world, self._state.engine
        assert layout is not None
        assert world is not None
        assert engine is not None
        self._change.forget()
        self._saves.end()
        self._become("saving")
        if spec.output is None:
            return self._poll_end()
        seats, seat, step = layout.seats, layout.seat, self._state.progress.step
        try:
            weights = self._call(engine.weights)
            model = spec.model_shape()
            end = self._call(lambda: ending(model, seats, seat, weights, spec, step, world))
        except Exception as error:  # a peer went, or there is no memory: the state is whole
            return self._halt(error)
        self._messages.kept_as = end.kept_as
        self._final.begin(end.steps)
        return self._poll_end()

    def _diverge(self, error: NonFinite, spec: TrainingSpec) -> None:
        """End the training with the weights before the step, if there is where to write them."""
        if spec.output is None or not self._state.progress.updates:
            return self._halt(error)
        self._trouble = self._final.divergence = Trouble.of(error)
        return self._finish(spec)

    def _poll_end(self) -> None:
        """Tell how the last writes get on."""
        if self._phase != "saving":
            self._final.forget()
            return
        if (trouble := self._final.trouble) is not None and trouble != self._trouble:
            self._trouble = trouble
            self._report()
        if not self._final.is_writing and self._saves.has_ended():
            self._become("done")

    def _poll_saves(self) -> None:
        """Tell of saves that have ended; a suspension ends for all ranks alike."""
        self._messages.saved(self._saves.take_records())
        if self._phase != "suspending" or (is_saved := self._saves.suspended()) is None:
            return
        self._messages.saved(self._saves.take_records())
        world = self._world
        assert world is not None
        try:
            is_whole = self._call(lambda: world.all_say(is_saved))
            self._become("suspended" if is_whole else "training")
        except Exception as error:  # a peer went: the state is whole
            self._halt(error)

    def _halt(self, error: BaseException) -> None:
        """Leave the broken world at once, so that all who wait for it fail too; keep the state."""
        if (world := self._world) is not None:
            error = cause_of(error, world.broken.why)
            world.break_()
            world.leave()
            self._world = None
        if not has_lost_its_state(error):  # which nothing of its world holds up any more
            error = fault_of(self._services.device) or error
        self._state.explain(error, self._spec, self._services.device)
        self._trouble, self._told_to_halt = Trouble.of_halt(error, self._told_to_halt), None
        if self._trouble.kind != "lost peer":  # a peer that went is no fault of this process
            LOG.error("the world of epoch %s broke", self._state.epoch, exc_info=error)
        LOG.warning("halted at step %d: %s", self._state.progress.step, self._trouble.sentence)
        traceback.clear_frames(error.__traceback__)  # a frame would keep a group, and connections
        self._change.forget()
        self._halted_s = self._halted_s or time.monotonic()
        self._become("halted")
        if has_lost_its_state(error):  # the agent has heard why
            raise SystemExit(1)

    def _call(self, work: Callable[[], T], epoch: int | None = None) -> T:
        """Do what may wait for peers, until it is done or was told to halt, or to abort `epoch`."""

        def is_interrupted() -> bool:
            is_aborted = epoch is not None and self._change.abort_epoch >= epoch
            return is_aborted or self._told_to_halt is not None

        return self._calls.make(work, is_interrupted)

    # -- changing the epoch

    def _switch_if_told(self) -> None:
        """Switch where training agrees on no boundary: a joiner, a job's start, a recovery."""
        prepared, error = self._change.due()
        if error is not None:
            self._trouble = Trouble.of(error, "the store is gone: ")
            self._report()
        elif prepared is not None:
            self._switch(prepared)

    def _switch(self, prepared: Prepared) -> None:
        epoch, old_phase = prepared.move.directive.epoch, self._phase
        self._become("switching")
        self._told_to_halt = None  # what it cut is found out; what it cuts from now on is meant
        self._final.cancel()  # after the vote another rank may save in the same folder
        state, model = self._state, prepared.move.directive.training.model_shape()
        progress = state.progress if state.layout else None
        switch = Switch(model=model, prepared=prepared, services=self._services, progress=progress)
        try:
            if prepared.move.waits_for_boundary and state.engine is not None:
                prepared.store.set(prepared.boundary, "reached")
            self._change.move_begins(prepared)
            outcome = self._call(
                lambda: switch.run(
                    state.holdings(model), lambda: self._is_aborted(epoch), self._change.move_ends
                ),
                epoch,
            )
        except Undecided as error:
            if (layout := layout_of(prepared)) is not None:
                state.hold_also(layout, switch.agreed)
            self._halt(error)
            return
        except Exception as error:  # not voted: the old epoch stands
            LOG.warning("the change failed before its vote", exc_info=error)
            self._trouble = Trouble.of(error, f"epoch {epoch} was not reached: ")
            outcome = "abort"
        finally:
            self._change.move_ends()
        if outcome == "abort":
            self._keep_old_epoch(epoch, old_phase)
        else:
            self._commit(prepared, switch)

    def _keep_old_epoch(self, epoch: int, phase: RankPhase) -> None:
        """Go on with the old epoch, untouched."""
        if self._change.fail(epoch) and self._trouble.sentence is None:
            self._trouble = Trouble(f"epoch {epoch} was not reached: another rank could not")
        if self._state.layout is None:
            self._become("left")
            raise SystemExit(0)
        self._report()  # of the change, before its device is asked for
        if self._settle():
            self._final.again()
            self._become(phase)

    def _settle(self) -> bool:
        """Whether the device is done with a change that is not to be; else halt.

        What the change left on it would hold up the next step of the old plan, unnoticed.
        """
        if (fault := fault_of(self._services.device)) is not None:
            self._halt(fault)
        return fault is None

    def _is_aborted(self, epoch: int) -> bool:
        """Whether the change under way was called off; the mailbox's thread knows it.

        A directive of a newer epoch waits: preparing it would free what this change works with.
        """
        self._messages.hear()
        return self._change.abort_epoch >= epoch

    def _commit(self, prepared: Prepared, switch: Switch) -> None:
        """The outcome is commit: from here on the state belongs to the new epoch."""
        self._told_to_halt = None  # of the epoch that ends
        self._spec = prepared.move.directive.training
        self._services.on_phase("flip")
        state, successor = self._state, prepared.successor
        times_s = (self._stopped_s, self._halted_s) if state.layout else (None, None)
        self._halted_s = self._final.divergence = None
        self._change.take()
        self._change.forget()
        self._trouble = Trouble()
        prepared.transport.close()
        prepared.store.close()
        old_world, engine = self._world, successor.engine if successor else None
        old_engine = state.commit(layout_of(prepared), engine, switch.agreed)
        self._world = successor.world if successor else None
        if old_engine is not None:
            old_engine.release()
        if old_world is not None:
            old_world.leave()
        if successor is None:
            switch.lap("flip")
            self._messages.switched(self._messages.record(switch, times_s, None))
            self._become("left")
            raise SystemExit(0)
        try:
            digest = self._call(lambda: switch.complete(successor.world))
        except Exception as error:  # the outcome stands: an epoch must be formed again
            self._halt(error)
            return
        self._record = self._messages.record(switch, times_s, digest)
        note(epoch=prepared.move.directive.epoch, rank=successor.target.seat.rank)
        self._saves.begin(prepared.move, successor.saver)
        self._become("training")
