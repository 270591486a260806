"""The change that a rank gets ready for: prepared in the background, announced, told to switch.

Nothing here touches the state or the running world; an aborted change leaves only its number.
"""

from __future__ import annotations

import threading

from planner.model.shape import ModelShape
from worker.contract import Directive
from worker.control.connections import cut
from worker.rank.preparation import Preparation, Prepared
from worker.rank.services import Services
from worker.state.held_state import HeldState
from worker.state.still import StillState


class Change:
    """One rank's knowledge of the next epoch.

    Attributes:
        announced: the epoch that this rank has said it is ready for.
        failed_epoch: the newest epoch that could not be prepared.
        switch_epoch: the epoch that the operator told it to switch to.
        abort_epoch: the newest epoch that was called off.
    """

    def __init__(self, pod: str, slot: int, services: Services, still: StillState) -> None:
        self._pod, self._slot, self._services, self._still = pod, slot, services, still
        self._preparation: Preparation | None = None
        self._newest: Preparation | None = None  # given up or not, its thread may be at work
        self._move_lock = threading.Lock()
        self._moving: Prepared | None = None
        self.announced: int | None = None
        self.failed_epoch: int | None = None
        self.switch_epoch: int | None = None
        self.abort_epoch = 0

    @property
    def is_preparing(self) -> bool:
        """Whether a preparation runs or is done and not used yet."""
        return self._preparation is not None

    @property
    def ready_epoch(self) -> int | None:
        """The epoch that this rank is ready for and was told to switch to."""
        return self.switch_epoch if self.announced == self.switch_epoch else None

    @property
    def prepared(self) -> Prepared | None:
        """Tools of the switch, if this rank is ready and was told to switch."""
        preparation = self._preparation
        if preparation is None or self.announced is None:
            return None
        return preparation.result if self.switch_epoch == preparation.epoch else None

    def due(self) -> tuple[Prepared | None, Exception | None]:
        """Tools of a switch that is to begin now, where training agrees on no boundary.

        It begins at once, or once the old ranks stand at the boundary.  The error says why nobody
        can know that: only the preparation is lost.
        """
        prepared = self.prepared
        if prepared is None or not prepared.move.waits_for_boundary:
            return prepared, None
        try:
            return (prepared if prepared.store.check([prepared.boundary]) else None), None
        except RuntimeError as error:
            self.failed_epoch = prepared.move.directive.epoch
            self.forget()
            return None, error

    def is_preparing_for(self, directive: Directive) -> bool:
        """Whether this very directive is being prepared already."""
        current = self._preparation
        return current is not None and (current.epoch, current.directive.store) == (
            directive.epoch,
            directive.store,
        )

    def prepare(self, model: ModelShape, directive: Directive, held: HeldState) -> None:
        """Begin to prepare, and give up what was prepared before."""
        if self._preparation is not None:
            self._preparation.cancel()
        self.announced = None
        self._preparation = self._newest = Preparation(
            model,
            directive,
            self._pod,
            self._slot,
            held,
            self._services,
            self._still,
            self._unfinished(),
        )

    def _unfinished(self) -> Preparation | None:
        """An earlier preparation whose thread has not come back."""
        return self._newest if self._newest is not None and self._newest.running else None

    def poll(self) -> tuple[bool, Exception | None]:
        """Whether there is news of the preparation, and why it has failed, if it has."""
        preparation = self._preparation
        if preparation is None or preparation.running:
            return False, None
        if preparation.error is not None:
            self.failed_epoch = preparation.epoch
            self._preparation = None
            self.switch_epoch = None
            return True, preparation.error
        if self.announced == preparation.epoch:
            return False, None
        self.announced = preparation.epoch
        return True, None

    def move_begins(self, prepared: Prepared) -> None:
        """From here on an abort cuts the transport, for the move may wait for a lost peer."""
        with self._move_lock:
            self._moving = prepared
            is_aborted = self.abort_epoch >= prepared.move.directive.epoch
        if is_aborted:
            prepared.end_move()

    def move_ends(self) -> None:
        """From here on nothing is cut."""
        with self._move_lock:
            self._moving = None

    def call_off(self, epoch: int) -> None:
        """An abort was heard, in whatever thread: end the move that is under way, if it is its."""
        with self._move_lock:
            self.abort_epoch = max(self.abort_epoch, epoch)
            moving = self._moving
            if moving is not None and moving.move.directive.epoch <= epoch:
                moving.end_move()

    def end_waits(self) -> None:
        """End what this rank may wait for beside its world, from whatever thread.

        All connections are cut, unless some of them are NCCL's.
        """
        if self._services.payload.name != "nccl":
            cut()
            return
        with self._move_lock:
            if self._moving is not None:
                self._moving.end_move()

    def take(self) -> None:
        """Mark the preparation as in use; giving the change up no longer frees it."""
        if self._preparation is not None:
            self._preparation.take()

    def abort(self, epoch: int) -> bool:
        """Call an epoch off; whether it was the one in preparation."""
        self.abort_epoch = max(self.abort_epoch, epoch)
        if self._preparation is None or self._preparation.epoch != epoch:
            return False
        self.forget()
        return True

    def fail(self, epoch: int) -> bool:
        """Give a change up before its vote; whether it failed, here or elsewhere.

        Otherwise it was called off.
        """
        self.forget()
        if self.abort_epoch >= epoch:
            return False
        self.failed_epoch = epoch
        return True

    def forget(self) -> None:
        """Give up what is prepared, or has been used."""
        if self._preparation is not None:
            self._preparation.cancel()
        self._preparation = None
        self.announced = None
        self.switch_epoch = None
