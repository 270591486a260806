"""The seam through which state leaves a rank.

Every implementation passes `tests/contracts/test_transport.py`.

A transport is one group of `size` ranks, formed for one change of plan and given up after it.  Any
error means that the whole group is unusable: whoever gets one closes its end at once, which makes
all others fail too instead of waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

FORM_S = 120.0  # for all members to connect once all have met; NCCL's bootstrap takes seconds
END_S = 5.0  # for a wire or a device to end what it waits for; later it is left behind
ReduceOp = Literal["sum", "min", "max"]
Messages = Sequence[tuple[int, "torch.Tensor"]]  # (peer, a contiguous tensor)


class Pending(Protocol):
    """A send or a receive under way."""

    def wait(self) -> object:
        """Return when it is done: what was sent may be written to, what was received is there.

        Raises:
            TransferFailed: the peer is gone or silent.
        """


class Transport(Protocol):
    """Point-to-point messages and small reductions among the members of one change.

    Attributes:
        rank: this member's transport rank.
        size: number of members.
        device: where the tensors of messages live; what is reduced is on the host.
        in_rounds: messages travel by `exchange` alone, in rounds that all ranks number alike.
    """

    rank: int
    size: int
    device: torch.device
    in_rounds: bool

    @property
    def bytes_sent(self) -> int:
        """Bytes of all messages posted so far, without what the transport adds itself."""

    @property
    def bytes_received(self) -> int:
        """Bytes of all receives posted so far."""

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The numbers of a tensor of messages, in memory of the host.

        Raises:
            ConnectionError: the transport has broken, so what was received may be garbage.
        """

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Write a host tensor into a tensor of messages."""

    def post_send(self, peer: int, tensor: torch.Tensor) -> Pending:
        """Begin to send a contiguous tensor, which is not written to until the wait returns.

        The k-th send to a peer meets the k-th receive that the peer posts for this rank, of exactly
        as many bytes: both ends know the sizes beforehand and have compared what they know.
        """

    def post_receive(self, peer: int, tensor: torch.Tensor) -> Pending:
        """Begin to receive into a contiguous tensor."""

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        """Begin a round: none of its messages waits for another one of it.

        Args:
            sends: in the order in which each peer receives them.
            receives: likewise; with the sends at most `migration.transfer.MAX_OPERATIONS`.
        """

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce a host tensor of int64 or float over all ranks, in place.

        Called by every rank in the same order: before the first byte (what all compare) and after
        the last one (state digests).

        Raises:
            TransferFailed: a peer is gone or silent.
        """

    def close(self, *, wait: bool = False) -> None:
        """Give up the group, at the end or at the first error; may be called twice.

        Peers that are still in a call get TransferFailed.

        Args:
            wait: return only when the connections are gone.  Costs about 12 ms per peer with gloo,
                which is nothing that a stalled job should wait for.
        """


class AllOf:
    """Several messages as one."""

    def __init__(self, pending: Sequence[Pending]) -> None:
        self._pending = pending

    def wait(self) -> None:
        """See `Pending.wait`."""
        for one in self._pending:
            one.wait()


class Posting(Protocol):
    """What posts messages one by one."""

    def post_send(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_send`."""

    def post_receive(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_receive`."""


def post_all(transport: Posting, sends: Messages, receives: Messages) -> Pending:
    """A round of a transport whose messages may be posted in any order."""
    sent = [transport.post_send(peer, tensor) for peer, tensor in sends]
    received = [transport.post_receive(peer, tensor) for peer, tensor in receives]
    return AllOf([*received, *sent])
