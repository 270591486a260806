"""The checkpoints that a rank saves while it trains: when, and what of it the operator asked.

A save is due after so many steps, or so many seconds.  The ranks agree on its boundary as on that
of a switch, and none is ready while it still writes: else a slow rank would finish no save.
"""

from __future__ import annotations

import math
import time

from worker.checkpoint.manifest import SavedStep
from worker.checkpoint.saver import Saver
from worker.contract import SaveRecord, TrainingSpec
from worker.control.messages import Save, Suspend
from worker.engine.seam import SAVE, SUSPEND, Engine, Evaluation, Progress
from worker.rank.move import Move
from worker.rank.rank_state import Layout
from worker.state.held_state import HeldState
from worker.world.world import World

UNAGREED_MOST = 3  # boundaries for all to hear of a suspension; then this rank saves meanwhile
ECHO_S = 1.0  # from the end of a save until the operator has heard of it


class Saves:
    """The saver of the epoch that trains; a job without checkpoints has none."""

    def __init__(self) -> None:
        self._saver: Saver | None = None
        self._former: Saver | None = None  # of the epoch before, whose save may be under way
        self._plan_digest = ""
        self._every_steps: int | None = None
        self._every_s: float | None = None
        self._is_due = False  # by steps, until a save begins
        self._newest_s = 0.0  # when the newest save began, or the epoch
        self._is_told_to_suspend = self._is_told_to_save = False
        self._unagreed = 0  # boundaries without agreement since it was told to suspend
        self._is_answering = False  # the save under way is the one that was asked for
        self._answered_s = -math.inf  # when it ended
        self._waits_for_evaluation = False  # of the step that is due
        self._suspension: tuple[TrainingSpec, Progress, Layout] | None = None
        self._since_s = 0.0  # when the suspension, or the end, began

    def begin(self, move: Move, saver: Saver | None) -> None:
        """Follow a new epoch; the save of the epoch before goes on until the next save or epoch."""
        if self._saver is not None:
            self._saver.hurry()
        self._end_former()
        self._former, self._saver, self._suspension = self._saver, saver, None
        self._is_told_to_suspend = self._is_told_to_save = self._waits_for_evaluation = False
        self._unagreed = 0
        self._is_answering = False
        self._newest_s = time.monotonic()
        how = move.directive.training.checkpoint
        self._plan_digest, self._every_s = move.plan.digest, how.every_s if how else None
        self._every_steps = how.every_steps if how else None
        self._is_due &= self._every_steps is not None

    def hear(self, message: Save | Suspend) -> None:
        """Hear what is wanted at the next boundary; called in whatever thread.

        The operator asks for a save until it hears that one is made: while it is, that is no
        further one.
        """
        is_echo = self._is_answering or time.monotonic() - self._answered_s < ECHO_S
        self._is_told_to_save |= isinstance(message, Save) and not is_echo
        if self._saver is not None:
            self._saver.hurry()
        self._is_told_to_suspend |= isinstance(message, Suspend)

    def ready(self) -> int | None:
        """What this rank is ready for at the next boundary, if for anything.

        Where the others never hear of a suspension, it must not keep them from saving.
        """
        if self._saver is None:
            return None
        if (step := self._saver.reached_step) is not None:
            self._note_due(step + 1)
        is_due = self._every_s is not None and time.monotonic() - self._newest_s >= self._every_s
        is_due = is_due or self._is_due or self._is_told_to_save
        wish = SAVE if is_due and not self._saver.is_writing else None
        if self._is_told_to_suspend and (wish is None or self._unagreed < UNAGREED_MOST):
            return SUSPEND
        return wish

    def at_boundary(
        self, spec: TrainingSpec, progress: Progress, layout: Layout | None, agreed: int | None
    ) -> None:
        """Begin a save where one is due; training goes on at once.

        A step that is evaluated next is saved after that, with its held-out loss.
        """
        saver = self._saver
        if saver is None or spec.checkpoint is None or layout is None:
            return
        self._note_due(progress.step)
        self._unagreed += self._is_told_to_suspend and agreed is None
        # At the boundary of a switch no vote says that all have written.
        saves = agreed == SAVE or (agreed is not None and self._is_due and not saver.is_running)
        if agreed == SUSPEND:
            self._is_told_to_suspend, self._unagreed = False, 0
            self._suspension, self._since_s = (spec, progress, layout), time.monotonic()
            saver.hurry()
            self._begin_suspended()
        elif saves:
            self._waits_for_evaluation = agreed == SAVE and spec.evaluates_at(progress.step)
            if not self._waits_for_evaluation:
                self._save(saver, spec, progress, layout, is_paced=not self._is_told_to_save)

    def evaluate(self, engine: Engine, world: World) -> tuple[Evaluation, bool]:
        """Evaluate the model; also whether to save it as the best: a collective.

        That is so if no rank knows a checkpoint with so low a loss.  The model of step 0 is never
        saved, as the job starts from it.
        """
        found = engine.evaluate()
        if self._saver is None or not self._saver.keeps_best:  # as its epoch says on all ranks
            return found, False
        is_best = all(saver.may_be_best(found.loss) for saver in self._savers)
        return found, world.all_say(is_best and engine.progress.step > 0)

    def evaluated(
        self,
        spec: TrainingSpec,
        progress: Progress,
        layout: Layout | None,
        loss: float,
        is_best: bool,
    ) -> None:
        """Begin a save of an evaluated step where one is due, or all ranks take it for the best."""
        is_due, self._waits_for_evaluation = self._waits_for_evaluation, False
        saver = self._saver
        if (is_due or is_best) and saver is not None and layout is not None:
            is_paced = not self._is_told_to_save
            self._save(saver, spec, progress, layout, is_paced=is_paced, loss=loss)

    def suspended(self) -> bool | None:
        """Whether this rank's part of the last checkpoint is saved; None: it is still written."""
        saver = self._saver
        if saver is None or self._suspension is None:
            return False
        _, progress, _ = self._suspension
        if not self._begin_suspended() and not saver.is_running:
            return None  # the save before has just ended
        if not saver.end_if_silent(self._since_s):
            return None
        self._suspension = None
        return saver.saved_step == progress.step

    def end(self) -> None:
        """All steps are trained: the save under way is waited for as in a suspension."""
        self._since_s = time.monotonic()
        if self._saver is not None:
            self._saver.hurry()

    def has_ended(self) -> bool:
        """Whether nothing is waited for at the end any more."""
        awaited = [one for one in self._savers if one.is_running and not one.is_given_up]
        ended = [saver.end_if_silent(self._since_s) for saver in awaited]
        return all(ended)

    @property
    def is_running(self) -> bool:
        """Whether a save is under way, or its end is still to be told."""
        return any(saver.is_running or saver.has_records for saver in self._savers)

    def take_records(self) -> tuple[SaveRecord, ...]:
        """Saves that have ended since the last call."""
        found = tuple(record for saver in self._savers for record in saver.take_records())
        if self._is_answering and not self.is_running:
            self._is_answering, self._answered_s = False, time.monotonic()
        return found

    @property
    def _savers(self) -> tuple[Saver, ...]:
        """Of this epoch and of the one before."""
        return tuple(saver for saver in (self._former, self._saver) if saver is not None)

    def _end_former(self) -> None:
        """Give up the save of the epoch before, which nobody waits for any more."""
        if self._former is not None:
            self._former.give_up()

    def _note_due(self, step: int) -> None:
        """Note whether a save is due by steps once so many are trained."""
        self._is_due |= self._every_steps is not None and step % self._every_steps == 0

    def _begin_suspended(self) -> bool:
        """Begin the save of a suspension; False: the one before is still written."""
        assert self._saver is not None
        assert self._suspension is not None
        spec, progress, layout = self._suspension
        if self._saver.newest_step == progress.step:
            return True
        if self._saver.is_writing:
            return False
        self._save(self._saver, spec, progress, layout, is_paced=False)
        return True

    def _save(
        self,
        saver: Saver,
        spec: TrainingSpec,
        progress: Progress,
        layout: Layout,
        *,
        is_paced: bool,
        loss: float | None = None,
    ) -> None:
        held = HeldState(spec.model_shape())
        held.add_shards(layout.seat, layout.shards)
        self._end_former()
        self._is_answering = self._is_told_to_save
        self._newest_s, self._is_told_to_save, self._is_due = time.monotonic(), False, False
        saved = SavedStep.at(progress, spec, self._plan_digest, loss)
        saver.begin(saved, held.read, is_paced=is_paced)
