"""`Transport` over a process group of torch that no global registry knows.

A raw group can form in a background thread while another world trains, and outlives the default
group.  Such a group rejects `batch_isend_irecv`, so works are posted and awaited one by one.
Hazards of gloo, all seen in experiments: a buffer larger than its message is filled in part without
an error, a smaller one aborts the process, so ranks compare the plan of all messages before the
first; an expired wait poisons the pair, so any error closes the group; freeing a group takes about
12 ms per peer, so its last reference goes in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from migration.errors import NoFreePort, TransferFailed, no_port_words
from migration.gloo_group import GlooGroup, Message, form_gloo
from migration.transport import Messages, Pending, ReduceOp, post_all
from planner.wording import counted, first_line

Waiting = Callable[[], AbstractContextManager[None]]
REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


class GlooTransport:
    """`Transport` over gloo, on CPU tensors.

    It listens on the interface that `GLOO_SOCKET_IFNAME` names, if that is set when it forms.
    """

    in_rounds = False

    def __init__(
        self, group: GlooGroup, rank: int, size: int, waiting: Waiting = nullcontext
    ) -> None:
        self.rank = rank
        self.waiting = waiting
        self.size = size
        self.device = torch.device("cpu")
        self.bytes_sent = 0
        self.bytes_received = 0
        self._group: GlooGroup | None = group
        self._pending: list[_Pending] = []

    @classmethod
    def form(
        cls,
        store: Store,
        prefix: str,
        rank: int,
        size: int,
        timeout_s: float,
        waiting: Waiting = nullcontext,
    ) -> Self:
        """Meet the other members at a store and connect to all of them.

        Args:
            store: of the epoch.  A connection of its own is used, so that the caller's is not
                blocked meanwhile.
            prefix: unique to this change; a prefix is never used twice.
            rank: my transport rank.
            size: number of members.
            timeout_s: to meet, and later for every message.
            waiting: entered while a message is waited for.

        Raises:
            TransferFailed: the members did not all come in time, or the store is gone.
            NoFreePort: see there.
        """
        try:
            group = form_gloo(store.clone(), prefix, rank, size, timeout_s)
        except RuntimeError as error:
            raise _not_formed(error, prefix, rank, size) from None
        return cls(group, rank, size, waiting)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transport.host`; it is there already, and gloo says itself what has failed."""
        return tensor

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Transport.fill`."""
        target.copy_(source)

    def post_send(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_send`."""
        self.bytes_sent += tensor.nbytes
        return self._post(self._live_group().send, tensor, peer)

    def post_receive(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_receive`."""
        self.bytes_received += tensor.nbytes
        return self._post(self._live_group().recv, tensor, peer)

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        """See `Transport.exchange`."""
        return post_all(self, sends, receives)

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport.all_reduce_`."""
        options = dist.AllreduceOptions()
        options.reduceOp = REDUCE_OPS[op]
        fault = None
        try:
            with self.waiting():
                self._live_group().group.allreduce([tensor], options).wait()
        except RuntimeError as error:
            fault = self._lost_peer(error)
        if fault:
            raise TransferFailed(fault)

    def watch(self, peer: int, /) -> None:
        """Wait for as long as a peer lives: for a message that it never sends.

        Raises:
            RuntimeError: it is gone, or this transport is closed.
        """
        group = self._group
        if group is not None:
            message = group.watch(peer)
            del group
            message.wait()

    def close(self, *, wait: bool = False) -> None:
        """See `Transport.close`."""
        if self._group is None:
            return
        held: list[object] = [self._group, *(pending.work for pending in self._pending)]
        for pending in self._pending:
            pending.work = None
        self._pending.clear()
        self._group = None
        dropping = threading.Thread(target=held.clear, name="close-transport", daemon=True)
        dropping.start()
        if wait:
            dropping.join()

    def _post(
        self,
        begin: Callable[[torch.Tensor, int], Message],
        tensor: torch.Tensor,
        peer: int,
    ) -> Pending:
        fault = None
        try:
            self._pending.append(_Pending(self, begin(tensor, peer)))
        except RuntimeError as error:
            fault = self._lost_peer(error)
        if fault:
            del begin  # it knows the group
            raise TransferFailed(fault)
        return self._pending[-1]

    def _live_group(self) -> GlooGroup:
        if self._group is None:
            raise TransferFailed(f"rank {self.rank} has closed this transport; form a new one")
        return self._group

    def _lost_peer(self, error: RuntimeError) -> str:
        """The sentence, raised only after the `except`.

        Else an error that somebody keeps would keep its cause, that its frames, these the group,
        and the group the peers waiting.
        """
        return f"rank {self.rank} lost a peer: {_words_of(error)}"


def _not_formed(error: RuntimeError, prefix: str, rank: int, size: int) -> TransferFailed:
    """Why a transport could not form, with the kernel's words if they tell."""
    others = f"{counted(size - 1, 'other member')} of {prefix!r}"
    words = no_port_words(str(error))
    if words is not None:
        return NoFreePort(f"rank {rank} has no port left to connect to {others}: {words}")
    return TransferFailed(f"rank {rank} could not connect to {others}: {_words_of(error)}")


def _words_of(error: RuntimeError) -> str:
    """The first line that gloo or a store says, without the source file."""
    line = first_line(error)
    return line.partition("] ")[2] or line


class _Pending:
    """A work of gloo, which can be awaited but not asked: `is_completed` stays false until then.

    A work keeps the connections of its group, so it is dropped once it is done or has failed.
    """

    def __init__(self, transport: GlooTransport, work: Message) -> None:
        self._transport = transport
        self.work: Message | None = work

    def wait(self) -> None:
        """See `Pending.wait`."""
        fault = None
        if self.work is None:
            self._transport._live_group()  # says that it is closed
            return
        try:
            with self._transport.waiting():
                self.work.wait()
        except RuntimeError as error:
            fault = self._transport._lost_peer(error)
        self.work = None
        self._transport._pending.remove(self)
        if fault:
            raise TransferFailed(fault)
