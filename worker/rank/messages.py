"""Messages between a rank and its agent, in the words of the contract."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable

from worker.contract import (
    Directive,
    EvaluationRecord,
    KeptAs,
    RankPhase,
    RankReport,
    SaveRecord,
    StepRecord,
    SwitchRecord,
    TrainingSpec,
)
from worker.control.activity import Activity
from worker.control.channel import Channel
from worker.control.messages import (
    Evaluated,
    Follow,
    Reported,
    Saved,
    Stepped,
    Switched,
    ToProcess,
)
from worker.engine.seam import Evaluation, StepResult
from worker.error_kinds import Trouble
from worker.rank.change import Change
from worker.rank.mailbox import Mailbox
from worker.rank.rank_state import RankState
from worker.rank.switch import Switch


class Messages:
    """The rank's end of the channel to its agent.

    Attributes:
        kept_as: see `RankReport`.
        wire: see `StepRecord`.
    """

    def __init__(
        self,
        channel: Channel,
        slot: int,
        activity: Activity,
        on_urgent: Callable[[ToProcess], None],
    ) -> None:
        """See `Mailbox`."""
        self._channel, self._slot = channel, slot
        self._started_s = time.monotonic()
        self._mailbox = Mailbox(channel, activity, on_urgent)
        self._heard: deque[ToProcess] = deque()
        self.kept_as: KeptAs | None = None
        self.wire: str | None = None

    def hear(self) -> None:
        """Leave what has come to `next`; for who must not act on it now.

        Raises:
            SystemExit: the agent is gone.
        """
        while (message := self._mailbox.next(0)) is not None:
            self._heard.append(message)

    def next(self, patience_s: float | None) -> Directive | None:
        """The next directive, or None if none came in time; None waits for ever, 0 only looks.

        Raises:
            SystemExit: the agent is gone.
        """
        message = self._heard.popleft() if self._heard else self._mailbox.next(patience_s)
        match message:
            case None:
                return None
            case Follow():
                return message.directive
            case _:  # done at once, when it came
                return self.next(patience_s)

    def report(
        self,
        phase: RankPhase,
        state: RankState,
        change: Change,
        trouble: Trouble,
    ) -> None:
        """Tell where this rank is and what it holds."""
        progress = state.progress
        report = RankReport(
            slot=self._slot,
            pid=os.getpid(),
            started_s=self._started_s,
            phase=phase,
            rank=state.seat.rank if state.seat else None,
            epoch=state.epoch,
            also_epoch=state.also_epoch,
            pending_epoch=change.announced,
            failed_epoch=change.failed_epoch,
            step=progress.step,
            gradients_step=progress.gradients_step,
            norm_step=progress.result.step if progress.result else None,
            gradient_norm=progress.result.gradient_norm if progress.result else None,
            error=trouble.sentence,
            error_kind=trouble.kind,
            error_site=trouble.site,
            kept_as=self.kept_as,
            overruns=state.engine.overruns() if state.engine else 0,
        )
        self._channel.send(Reported(rank=report))

    def step(
        self,
        epoch: int,
        spec: TrainingSpec,
        result: StepResult,
        times_s: tuple[float, float],
    ) -> None:
        """Tell of one trained step, which began and ended at these monotonic times."""
        record = StepRecord(
            epoch=epoch,
            step=result.step,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            start_s=times_s[0],
            end_s=times_s[1],
            learning_rate=result.learning_rate,
            loss_scale=result.loss_scale,
            tokens=spec.global_batch * spec.sequence_length,
            forward_s=result.parts_s[0],
            backward_s=result.parts_s[1],
            waiting_s=result.parts_s[2],
            sync_s=result.sync_s,
            memory_bytes=result.memory_bytes,
            wire=self.wire,
        )
        self._channel.send(Stepped(record=record, compute_s=result.compute_s))

    def cut_step(self, state: RankState, spec: TrainingSpec | None) -> None:
        """Tell of the step in which the world broke, if its update is here now."""
        cut = state.take_cut_step()
        if cut is not None and spec is not None and state.epoch is not None:
            result, start_s = cut
            self.step(state.epoch, spec, result, (start_s, result.met_s))

    def evaluated(self, epoch: int, step: int, found: Evaluation, start_s: float) -> None:
        """Tell of an evaluation of the model after so many steps, which ends now."""
        record = EvaluationRecord(
            epoch=epoch,
            step=step,
            loss=found.loss,
            samples=found.samples,
            start_s=start_s,
            end_s=time.monotonic(),
        )
        self._channel.send(Evaluated(record=record))

    def saved(self, records: Iterable[SaveRecord]) -> None:
        """Tell of saves that have ended."""
        for record in records:
            self._channel.send(Saved(record=record))

    def switched(self, record: SwitchRecord) -> None:
        """Tell of one switch, once its first step starts or this rank has left."""
        self._channel.send(Switched(record=record))

    def record(
        self, switch: Switch, times_s: tuple[float | None, float | None], digest: str | None
    ) -> SwitchRecord:
        """This rank's part of a switch.

        Args:
            switch: that is over.
            times_s: when its last step ended and when it halted; None: it did not.
            digest: of the state in the new engine.
        """
        prepared = switch.prepared
        return SwitchRecord(
            epoch=prepared.move.directive.epoch,
            slot=self._slot,
            pid=os.getpid(),
            step=switch.agreed.step,
            stopped_s=times_s[0],
            halted_s=times_s[1],
            laps=switch.laps,
            bytes_sent=prepared.transport.bytes_sent,
            bytes_received=prepared.transport.bytes_received,
            bytes_needed=prepared.move.bytes_needed,
            bytes_spread=switch.bytes_spread,
            state_digest_before=switch.digest,
            state_digest_after=digest,
        )
