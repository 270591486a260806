"""Getting ready for the next epoch in the background, while the old one trains.

A thread plans the move, connects to the epoch's store and forms the transport group of old and new
members.  Nothing of the running world is touched; if it fails, only the preparation is lost.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from migration.transport import Transport
from planner.model.shape import ModelShape
from worker.contract import Directive
from worker.rank.effects import Services
from worker.rank.move import Move, plan_move

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_log = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """What a switch works with, once all members have met."""

    move: Move
    store: Store
    transport: Transport


class Preparation:
    """One rank's preparation for one directive.

    Attributes:
        directive: that asks for it.
        error: why it failed, one line.
    """

    def __init__(
        self, model: ModelShape, directive: Directive, pod: str, slot: int, services: Services
    ) -> None:
        self.directive = directive
        self.error: str | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._result: Prepared | None = None
        work = (model, pod, slot, services)
        self._thread = threading.Thread(
            target=self._prepare, args=work, name="prepare-epoch", daemon=True
        )
        self._thread.start()

    @property
    def epoch(self) -> int:
        """Of the directive."""
        return self.directive.epoch

    @property
    def running(self) -> bool:
        """Whether the thread is still at work."""
        return self._thread.is_alive()

    @property
    def result(self) -> Prepared | None:
        """What the switch works with once all members have met, else None."""
        with self._lock:
            return self._result

    def cancel(self) -> None:
        """Give it up, now or as soon as the thread comes back."""
        with self._lock:
            self._cancelled = True
            result, self._result = self._result, None
        if result:
            result.transport.close()

    def _prepare(self, model: ModelShape, pod: str, slot: int, services: Services) -> None:
        epoch = self.directive.epoch
        try:
            services.on_phase("prepare")
            move = plan_move(model, self.directive, pod, slot)
            if move is None:
                raise LookupError(f"rank ({pod}, {slot}) is no member of epoch {epoch}")
            store = services.connect_store(self.directive.store)
            size = len(self.directive.members)
            transport = services.form_transport(
                store, f"epoch{epoch}/transport", move.transport_rank, size
            )
        except Exception as error:  # whatever it was, the old epoch goes on
            _log.warning("epoch %d could not be prepared", epoch, exc_info=error)
            said = str(error).partition("\n")[0] or repr(error)
            self.error = f"cannot prepare epoch {epoch}: {said}"
            return
        with self._lock:
            if not self._cancelled:
                self._result = Prepared(move, store, transport)
                return
        transport.close()
