"""The seam to a wire: how the tensors of the ranks of one set travel.

Every implementation passes `tests/contracts/test_wire.py`.  A wire carries payload: gradients,
activations, partial results.  What decides (slots of a step, votes, digests) is host tensors on the
control plane, which is gloo whatever the wire is.
Invariants: operations of one rank on one wire are done in the order in which they were issued; one
thread issues, the one that trains.  After `abort` every wait ends, here and at the peers, and what
it brought may be garbage.
Source: NCCL's user guide, "Using multiple NCCL communicators concurrently", "Thread Safety".
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from migration.transport import AllOf, Messages, ReduceOp

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed.distributed_c10d import ProcessGroup


class Work(Protocol):
    """An operation under way."""

    def wait(self) -> object:
        """Return when the tensor may be used: on a device, by what is issued afterwards.

        Raises:
            RuntimeError: a peer is gone.
        """


class Wire(Protocol):
    """One rank's membership in a set of ranks; peers are counted by their place in the set."""

    @property
    def control(self) -> Wire | None:
        """The wire of the same ranks for host tensors; None: it has none, form one beside it."""

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> Work:
        """Begin to reduce a contiguous tensor in place over all members."""

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """Begin to fill a contiguous tensor with that of a member."""

    def all_gather(self, tensor: torch.Tensor) -> Work:
        """Begin to fill a contiguous tensor with the share of each member.

        Args:
            tensor: of one dimension, which the number of members divides; the share of this member
                is in its place.
        """

    def send(self, tensor: torch.Tensor, target: int) -> Work:
        """Begin to send a contiguous tensor, which is not written to before the wait."""

    def recv(self, tensor: torch.Tensor, source: int) -> Work:
        """Begin to receive into a contiguous tensor of exactly the size that is sent."""

    def exchange(self, sends: Messages, receives: Messages) -> Work:
        """Begin a round of messages; none waits for another one.

        Args:
            sends: (place of a member, contiguous tensor), in the order in which each receives them.
            receives: likewise; with the sends 1 to `migration.transfer.MAX_OPERATIONS`.
        """

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        rows_from: Sequence[int],
        rows_to: Sequence[int],
    ) -> Work:
        """Begin to send each member its rows of a tensor, and to receive as each has for this one.

        Args:
            received: contiguous; its rows come member by member, as many of each as it sends.
            sent: contiguous; likewise, not written to before the wait.
            rows_from: how many rows each member sends; maybe none.
            rows_to: how many each gets.
        """

    def held_bytes(self) -> int:
        """Memory of the device that the wire holds by itself."""

    def own_end(self) -> str | None:
        """Why it has ended by itself, which nobody asked for; None: it has not.

        Asked after a number was read: one that came before the end is known to be good.
        """

    def abort(self) -> None:
        """End every wait, here and at the peers, from whatever thread; may be called twice."""

    def release(self) -> object:
        """Give the wire up; who drops the answer frees it."""


# (store, a name that is never used twice, place in the set, size of the set)
FormWire = Callable[["Store", str, int, int], Wire]


class OverHost(ABC):
    """Ways in which all wires are alike whose tensors travel from memory of the host."""

    @abstractmethod
    def send(self, tensor: torch.Tensor, target: int) -> Work:
        """See `Wire`."""

    @abstractmethod
    def recv(self, tensor: torch.Tensor, source: int) -> Work:
        """See `Wire`."""

    def exchange(self, sends: Messages, receives: Messages) -> Work:
        """See `Wire`; messages may be issued in any order."""
        sent = [self.send(tensor, target) for target, tensor in sends]
        received = [self.recv(tensor, source) for source, tensor in receives]
        return AllOf([*received, *sent])

    def held_bytes(self) -> int:
        """See `Wire`; its memory is the host's."""
        return 0

    def own_end(self) -> str | None:
        """See `Wire`; who waits for one that has ended gets an error."""
        return None


def own_share(group: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
    """The share of this member in a tensor of one dimension, which all members fill."""
    length = tensor.numel() // group.size()
    return tensor.narrow(0, group.rank() * length, length)


def abort_all(wires: Sequence[Wire]) -> None:
    """End all wires of one world, each in a thread: no end is awaited before all have begun.

    One after the other would wait for ever where each waits for the whole device, and so for the
    kernels of the others (nccl#1013).  A group call of NCCL around them changes nothing: it counts
    for one thread, and torch's older class aborts in another one.
    Source: torch's `ProcessGroupNCCL::abort`; NVIDIA Resiliency Extension's in-process abort.
    """
    under_way = []
    for wire in wires:
        ending = threading.Thread(target=wire.abort, name="abort-wire", daemon=True)
        try:
            ending.start()
        except RuntimeError:  # no thread is left
            wire.abort()
        else:
            under_way.append(ending)
    for ending in under_way:
        ending.join()
