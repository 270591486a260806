"""A wire over NCCL: device tensors between GPUs, without a copy through the host.

NCCL does what a rank issues on one communicator strictly in that order, so messages go out as
groups, in which none waits for another.  `wait` orders streams and blocks nobody; a dead peer is
not noticed, and an ended receive holds garbage: whoever reads a number asks the flag of the world.
With `TORCH_NCCL_BLOCKING_WAIT=1` in the environment `wait` blocks, and raises once the wire ends:
for a first run on new machines.
Nothing here has run on a GPU; the same code runs on real processes over gloo's groups, which form
in the same way (`tests/fakes/gloo_group.py`).
Source: NCCL's user guide, "Group calls" and "Thread safety"; pytorch#174288 for the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from migration.gloo_transport import REDUCE_OPS
from migration.transfer import MAX_OPERATIONS
from migration.transport import Messages, ReduceOp
from worker.world.nccl_groups import FormGroup, own_end
from worker.world.wire import FormWire, Work, own_share

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_TAG = 0


class NcclWire:
    """One rank's membership; see `Wire`.

    Attributes:
        control: None; it takes no host tensors.
    """

    control = None

    def __init__(self, group: Any) -> None:
        self._group: Any = group  # of torch; None once it is released

    @classmethod
    def over(cls, form: FormGroup) -> FormWire:
        """Forms wires over the groups that `form` forms."""

        def form_wire(store: Store, name: str, place: int, size: int) -> NcclWire:
            return cls(form(store, name, place, size))

        return form_wire

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> Work:
        """See `Wire`."""
        options = dist.AllreduceOptions()
        options.reduceOp = REDUCE_OPS[op]
        work: Work = self._live().allreduce([tensor], options)
        return work

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """See `Wire`."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        work: Work = self._live().broadcast([tensor], options)
        return work

    def all_gather(self, tensor: torch.Tensor) -> Work:
        """See `Wire`; NCCL leaves the share in its place."""
        group = self._live()
        work: Work = group._allgather_base(tensor, own_share(group, tensor))
        return work

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        rows_from: Sequence[int],
        rows_to: Sequence[int],
    ) -> Work:
        """See `Wire`."""
        options = dist.AllToAllOptions()
        work: Work = self._live().alltoall_base(
            received, sent, list(rows_from), list(rows_to), options
        )
        return work

    def send(self, tensor: torch.Tensor, target: int) -> Work:
        """See `Wire`; a round of one message."""
        return self.exchange([(target, tensor)], [])

    def recv(self, tensor: torch.Tensor, source: int) -> Work:
        """Likewise."""
        return self.exchange([], [(source, tensor)])

    def exchange(self, sends: Messages, receives: Messages) -> Work:
        """See `Wire`."""
        if not 0 < len(sends) + len(receives) <= MAX_OPERATIONS:
            raise ValueError(f"a round has 1 to {MAX_OPERATIONS} operations")
        group = self._live()
        group._start_coalescing()
        try:
            for peer, tensor in sends:
                group.send([tensor], peer, _TAG)
            for peer, tensor in receives:
                group.recv([tensor], peer, _TAG)
        except BaseException:
            # NCCL counts groups by thread: in an open one the next world would never start.
            with suppress(RuntimeError):
                group._end_coalescing()
            raise
        work: Work = group._end_coalescing()
        return work

    def held_bytes(self) -> int:
        """See `Wire`; an older torch or NCCL does not say, and counts as nothing."""
        try:
            return int(self._live().memory_stats().get("total", 0))
        except (AttributeError, RuntimeError):
            return 0

    def own_end(self) -> str | None:
        """See `Wire`."""
        return own_end(self._group) if self._group is not None else None

    def abort(self) -> None:
        """See `Wire`."""
        if (group := self._group) is not None:
            group.abort()

    def release(self) -> object:
        """See `Wire`."""
        group, self._group = self._group, None
        return group

    def _live(self) -> Any:
        if self._group is None:
            raise ConnectionError("the world of this epoch is gone")
        return self._group
