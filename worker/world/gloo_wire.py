"""A wire over gloo, for host tensors: the control plane, and the payload of ranks on processors.

It forms by what its members write to a store, so a thread forms the wires of the next plan while
the old plan trains, and nothing that is common to all ranks must be numbered or agreed.
Source: torchft and examples of torch build such groups; that the constructor waits without the
interpreter lock was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup

from migration.gloo_group import GlooGroup, form_gloo
from migration.gloo_transport import REDUCE_OPS
from migration.transport import ReduceOp
from worker.control.connections import connections, cut
from worker.control.store_client import PATIENCE_S
from worker.world.forming import ends_if_given_up
from worker.world.wire import OverHost, Work, own_share

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class GlooWire(OverHost):
    """One rank's membership; see `Wire`."""

    def __init__(self, group: GlooGroup, own: frozenset[int]) -> None:
        """`own` are the connections of the group, which `abort` cuts."""
        self._group: GlooGroup | None = group
        self._connections = own

    @classmethod
    def form(cls, store: Store, name: str, place: int, size: int) -> Self:
        """Meet the other members at the store.

        A member that dies closes its connections, and one that falls silent is told of by its
        heartbeats; so the wire itself never stops waiting once it stands.
        """
        before = connections()
        with ends_if_given_up(store):
            group = form_gloo(store, name, place, size, PATIENCE_S)
        return cls(group, connections() - before)

    @property
    def control(self) -> Self:
        """It takes host tensors itself."""
        return self

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> Work:
        """See `Wire`."""
        options = dist.AllreduceOptions()
        options.reduceOp = REDUCE_OPS[op]
        return self._live(tensor).group.allreduce([tensor], options)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """See `Wire`."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self._live(tensor).group.broadcast([tensor], options)

    def all_gather(self, tensor: torch.Tensor) -> Work:
        """See `Wire`; gloo wants the share apart from the whole."""
        group = self._live(tensor).group
        return group._allgather_base(tensor, own_share(group, tensor).clone())

    def send(self, tensor: torch.Tensor, target: int) -> Work:
        """See `Wire`."""
        return self._live(tensor).send(tensor, target)

    def recv(self, tensor: torch.Tensor, source: int) -> Work:
        """See `Wire`."""
        return self._live(tensor).recv(tensor, source)

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        rows_from: Sequence[int],
        rows_to: Sequence[int],
    ) -> Work:
        """See `Wire`."""
        group = self._live(sent).group
        return group.alltoall_base(
            received, sent, list(rows_from), list(rows_to), dist.AllToAllOptions()
        )

    def watch(self, member: int, /) -> None:
        """Wait for as long as a member lives: for a message that it never sends.

        Raises:
            RuntimeError: it is gone, or this wire has ended.
        """
        self._live().watch(member).wait()

    def abort(self) -> None:
        """Cut the connections: gloo then fails whoever waits for them."""
        cut(self._connections)

    def release(self) -> ProcessGroup | None:
        """Give up the group; who drops the answer closes its connections."""
        group, self._group = self._group, None
        return group.group if group is not None else None

    def _live(self, tensor: torch.Tensor | None = None) -> GlooGroup:
        if self._group is None:
            raise ConnectionError("the world of this epoch is gone")
        # Gloo would hand a pointer of the device to a socket.
        if tensor is not None and not tensor.is_cpu:
            raise ValueError(f"a gloo wire takes host tensors, this one is on {tensor.device}")
        return self._group
