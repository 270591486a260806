"""`Transport` over a process group of torch that no global registry knows.

A raw group can form in a background thread while another world trains, and outlives the default
group.  Such a group rejects `batch_isend_irecv`, so works are posted and awaited one by one.
Hazards of gloo that are met here, all seen in experiments: a buffer larger than its message is
filled in part without an error, a smaller one aborts the process, so sizes travel ahead of every
body; an expired wait poisons the pair, so any error closes the group; freeing a group takes about
12 ms per peer, so its last reference goes in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Self, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, ProcessGroupGloo, Store

from migration.errors import TransferFailed
from migration.transport import ReduceOp
from planner.wording import counted

_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
_SIZE_TAG, _BODY_TAG = 0, 1


class GlooTransport:
    """`Transport` over gloo, on CPU tensors.

    It listens on the interface that `GLOO_SOCKET_IFNAME` names, if that is set when it forms.
    """

    def __init__(self, group: ProcessGroupGloo, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.device = torch.device("cpu")
        self.bytes_sent = 0
        self.bytes_received = 0
        # Backend and ProcessGroup have the same methods; torch's stubs know only the latter's.
        self._group: ProcessGroup | None = cast("ProcessGroup", group)

    @classmethod
    def form(cls, store: Store, prefix: str, rank: int, size: int, timeout_s: float) -> Self:
        """Meet the other members at a store and connect to all of them.

        Args:
            store: of the epoch.  A connection of its own is used, so that the caller's is not
                blocked meanwhile.
            prefix: unique to this change; a prefix is never used twice.
            rank: my transport rank.
            size: number of members.
            timeout_s: to form, and later for every message.

        Raises:
            TransferFailed: the members did not all come in time, or the store is gone.
        """
        try:
            group = ProcessGroupGloo(
                PrefixStore(prefix, store.clone()), rank, size, timedelta(seconds=timeout_s)
            )
        except RuntimeError as error:
            raise TransferFailed(
                f"rank {rank} could not connect to {counted(size - 1, 'other member')} of "
                f"{prefix!r} within {timeout_s:g} s: {str(error).partition(chr(10))[0]}"
            ) from None
        return cls(group, rank, size)

    def exchange(
        self,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor]],
    ) -> None:
        """See `Transport.exchange`."""
        try:
            fault = self._exchange(sends, receives)
        except RuntimeError as error:
            fault = self._lost_peer(error)
        if fault:
            raise TransferFailed(fault)
        self.bytes_sent += sum(body.numel() for _, body in sends)
        self.bytes_received += sum(body.numel() for _, body in receives)

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport.all_reduce_`."""
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[op]
        fault = None
        try:
            self._live_group().allreduce([tensor], options).wait()
        except RuntimeError as error:
            fault = self._lost_peer(error)
        if fault:
            raise TransferFailed(fault)

    def close(self, *, wait: bool = False) -> None:
        """See `Transport.close`."""
        if self._group is None:
            return
        held = [self._group]
        self._group = None
        dropping = threading.Thread(target=held.clear, name="close-transport", daemon=True)
        dropping.start()
        if wait:
            dropping.join()

    def _exchange(
        self,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor]],
    ) -> str | None:
        """One round; returns the fault if a size is wrong."""
        group = self._live_group()
        lengths = [torch.tensor([body.numel()]) for _, body in sends]
        announced = [torch.zeros(1, dtype=torch.int64) for _ in receives]
        sent = [
            group.send([tensor], peer, tag)
            for (peer, body), length in zip(sends, lengths, strict=True)
            for tensor, tag in ((length, _SIZE_TAG), (body, _BODY_TAG))
        ]
        _wait(
            group.recv([length], peer, _SIZE_TAG)
            for (peer, _), length in zip(receives, announced, strict=True)
        )
        for (peer, body), length in zip(receives, announced, strict=True):
            if int(length) != body.numel():
                return (
                    f"rank {self.rank} expected {body.numel()} bytes from rank {peer}, "
                    f"which sends {int(length)}"
                )
        _wait(group.recv([body], peer, _BODY_TAG) for peer, body in receives)
        _wait(sent)
        return None

    def _live_group(self) -> ProcessGroup:
        if self._group is None:
            raise TransferFailed(f"rank {self.rank} has closed this transport; form a new one")
        return self._group

    def _lost_peer(self, error: RuntimeError) -> str:
        """What to say, raised only after the `except`.

        Else an error that somebody keeps would keep its cause, that its frames, these the group,
        and the group the peers waiting.
        """
        line = str(error).partition("\n")[0]
        return f"rank {self.rank} lost a peer: {line.partition('] ')[2] or line}"


def _wait(works: Iterable[dist.Work]) -> None:
    for work in tuple(works):  # all are posted before the first is awaited
        work.wait()
