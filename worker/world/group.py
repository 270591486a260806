"""A group of ranks of an epoch, which torch's registry and DeepSpeed never see.

Members speak of each other by their ranks in the epoch; a wire below carries what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch

from migration.transport import Messages, ReduceOp
from worker.control.activity import Activity
from worker.world.forming import ends_if_given_up
from worker.world.gloo_wire import GlooWire
from worker.world.wire import FormWire, Wire, Work, abort_all

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Ranks = tuple[int, ...]


class Group:
    """One rank's membership in a group of ranks of an epoch.

    Attributes:
        ranks: of the epoch, ascending.
    """

    def __init__(self, ranks: Ranks, wire: Wire, activity: Activity) -> None:
        self.ranks, self._activity = ranks, activity
        self._wire: Wire | None = wire

    @classmethod
    def form(
        cls,
        store: Store,
        name: str,
        ranks: Ranks,
        rank: int,
        activity: Activity,
        form_wire: FormWire = GlooWire.form,
    ) -> Self:
        """Meet the other members at the store, under a name that is never used twice."""
        wire = form_wire(store, name, ranks.index(rank), len(ranks))
        group = cls(ranks, wire, activity)
        if wire.control is not None:  # the first message of a connection costs more
            with ends_if_given_up(store, wire.control.abort):
                cls(ranks, wire.control, activity).all_reduce_(torch.zeros(1))
        return group

    def control(self, activity: Activity) -> Group | None:
        """The group of the same ranks for host tensors, if its wire has one; maybe itself."""
        wire = self._live()
        if wire.control is None:
            return None
        return self if wire.control is wire else Group(self.ranks, wire.control, activity)

    def start_all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> Work:
        """Begin to reduce a tensor in place; `finish` waits for it."""
        return self._live().all_reduce(tensor, op)

    def finish(self, work: Work) -> None:
        """Wait for what `start_all_reduce_` has begun."""
        with self._activity.wait(may_be_left=True):
            work.wait()

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> None:
        """Reduce a tensor in place over all members."""
        self.finish(self.start_all_reduce_(tensor, op))

    def broadcast_(self, tensor: torch.Tensor, source: int) -> None:
        """Fill `tensor` with that of the rank `source`."""
        self.finish(self._live().broadcast(tensor, self.ranks.index(source)))

    def all_gather_(self, tensor: torch.Tensor) -> None:
        """Fill a tensor with the share of each member; this one holds its own."""
        self.finish(self._live().all_gather(tensor.view(-1)))

    def all_to_all_(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        rows_from: Sequence[int],
        rows_to: Sequence[int],
    ) -> None:
        """Send each member its rows, and fill `received` with those for this one; see `Wire`."""
        self.finish(self._live().all_to_all(received, sent, rows_from, rows_to))

    def start_send(self, tensor: torch.Tensor, target: int) -> Work:
        """Begin to send to a rank; the tensor is not to be written to until `finish`."""
        return self._live().send(tensor, self.ranks.index(target))

    def send(self, tensor: torch.Tensor, target: int) -> None:
        """Send to a rank; returns once it has received."""
        self.finish(self.start_send(tensor, target))

    def recv(self, tensor: torch.Tensor, source: int) -> None:
        """Receive from a rank into a tensor of the size that it sends."""
        self.finish(self._live().recv(tensor, self.ranks.index(source)))

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send to some ranks and receive from some, as one; see `Wire`."""
        index = self.ranks.index
        sent = [(index(target), tensor) for target, tensor in sends]
        received = [(index(source), tensor) for source, tensor in receives]
        self.finish(self._live().exchange(sent, received))

    def held_bytes(self) -> int:
        """Memory of the device that its wire holds by itself."""
        return self._live().held_bytes()

    def own_end(self) -> str | None:
        """Why its wire has ended by itself; None: it has not."""
        wire = self._wire
        return wire.own_end() if wire is not None else None

    @staticmethod
    def abort_all(groups: Sequence[Group]) -> None:
        """End every wait in the groups of one world; whoever is in one gets an error."""
        abort_all([group._wire for group in groups if group._wire is not None])

    def release(self) -> object:
        """Give up the group; who drops the answer closes its connections."""
        wire, self._wire = self._wire, None
        return wire.release() if wire is not None else None

    def _live(self) -> Wire:
        if self._wire is None:
            raise ConnectionError("the world of this epoch is gone")
        return self._wire
