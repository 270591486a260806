"""A process group of our own, which torch's registry and DeepSpeed never see.

It forms by what its members write to a store, so a thread forms the groups of the next plan while
the old plan trains, and nothing that is common to all ranks must be numbered or agreed.
Source: torchft and examples of torch build such groups; that the constructor waits without the
interpreter lock was measured.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Literal, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, ProcessGroupGloo

from worker.control.activity import Activity
from worker.control.store_client import PATIENCE_S

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, Work

Ranks = tuple[int, ...]
ReduceOp = Literal["sum", "min", "max"]
_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
_TAG = 0


class Group:
    """One rank's membership in a group of ranks of an epoch.

    Attributes:
        ranks: of the epoch, ascending.
    """

    def __init__(
        self, store: Store, name: str, ranks: Ranks, rank: int, activity: Activity
    ) -> None:
        """Meet the other members at the store, under a name that is never used twice.

        A member that dies closes its connections, and one that falls silent is told of by its
        heartbeats; so the group itself never stops waiting.
        """
        self.ranks, self._activity = ranks, activity
        patience = datetime.timedelta(seconds=PATIENCE_S)
        prefix = PrefixStore(name, store)
        backend = ProcessGroupGloo(prefix, ranks.index(rank), len(ranks), patience)
        # Backend and ProcessGroup have the same methods; torch's stubs know only the latter's.
        self._backend: ProcessGroup | None = cast("ProcessGroup", backend)
        self.all_reduce_(torch.zeros(1))  # the first message of a connection costs more

    def start_all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> Work:
        """Begin to reduce a tensor in place; `finish` waits for it."""
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[op]
        return self._live().allreduce([tensor], options)

    def finish(self, work: Work) -> None:
        """Wait for what `start_all_reduce_` has begun."""
        with self._activity.wait(may_be_left=True):
            work.wait()

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> None:
        """Reduce a tensor in place over all members."""
        self.finish(self.start_all_reduce_(tensor, op))

    def broadcast_(self, tensor: torch.Tensor, source: int) -> None:
        """Fill `tensor` with that of the rank `source`."""
        options = dist.BroadcastOptions()
        options.rootRank = self.ranks.index(source)
        self.finish(self._live().broadcast([tensor], options))

    def start_send(self, tensor: torch.Tensor, target: int) -> Work:
        """Begin to send to a rank; the tensor is not to be written to until `finish`."""
        return self._live().send([tensor], self.ranks.index(target), _TAG)

    def send(self, tensor: torch.Tensor, target: int) -> None:
        """Send to a rank; returns once it has received."""
        self.finish(self.start_send(tensor, target))

    def recv(self, tensor: torch.Tensor, source: int) -> None:
        """Receive from a rank into a tensor of the size that it sends."""
        self.finish(self._live().recv([tensor], self.ranks.index(source), _TAG))

    def release(self) -> ProcessGroup | None:
        """Give up the group; who drops the answer closes its connections."""
        backend, self._backend = self._backend, None
        return backend

    def _live(self) -> ProcessGroup:
        if self._backend is None:
            raise ConnectionError("the world of this epoch is gone")
        return self._backend
