"""The change that a rank gets ready for: prepared in the background, announced, told to switch.

Nothing here touches the state or the running world; an aborted change leaves only its number.
"""

from __future__ import annotations

from planner.model.shape import ModelShape
from worker.contract import Directive
from worker.rank.effects import Services
from worker.rank.preparation import Preparation, Prepared


class Change:
    """What one rank knows of the next epoch.

    Attributes:
        announced: the epoch that this rank has said it is ready for.
        failed_epoch: the newest epoch that could not be prepared.
        switch_epoch: the epoch that the operator told it to switch to.
        abort_epoch: the newest epoch that was called off.
    """

    def __init__(self, pod: str, slot: int, services: Services) -> None:
        self._pod, self._slot, self._services = pod, slot, services
        self._preparation: Preparation | None = None
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
        """What the switch works with, if this rank is ready and was told to switch."""
        preparation = self._preparation
        if preparation is None or self.announced is None:
            return None
        return preparation.result if self.switch_epoch == preparation.epoch else None

    def is_preparing_for(self, directive: Directive) -> bool:
        """Whether this very directive is being prepared already."""
        current = self._preparation
        return current is not None and (current.epoch, current.directive.store) == (
            directive.epoch,
            directive.store,
        )

    def prepare(self, model: ModelShape, directive: Directive) -> None:
        """Begin to prepare, and give up what was prepared before."""
        if self._preparation is not None:
            self._preparation.cancel()
        self.announced = None
        self._preparation = Preparation(model, directive, self._pod, self._slot, self._services)

    def poll(self) -> tuple[bool, str | None]:
        """Whether there is news of the preparation, and the sentence if it has failed."""
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

    def abort(self, epoch: int) -> bool:
        """Call an epoch off; whether it was the one in preparation."""
        self.abort_epoch = max(self.abort_epoch, epoch)
        if self._preparation is None or self._preparation.epoch != epoch:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Give up what is prepared, or has been used."""
        if self._preparation is not None:
            self._preparation.cancel()
        self._preparation = None
        self.announced = None
        self.switch_epoch = None
