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

ReduceOp = Literal["sum", "min", "max"]


class Transport(Protocol):
    """Point-to-point messages and small reductions among the members of one change.

    Attributes:
        rank: this member's transport rank.
        size: number of members.
        device: where the tensors given to it must live.
        bytes_sent: of all messages sent so far, without what the transport adds itself.
        bytes_received: of all messages received so far.
    """

    rank: int
    size: int
    device: torch.device
    bytes_sent: int
    bytes_received: int

    def exchange(
        self,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor]],
    ) -> None:
        """Send and receive one round of messages; returns when all of mine are done.

        Called once per round of a schedule by every rank that has a message in it, with at most 32
        messages.  The k-th message to a peer meets the k-th that the peer receives from here.

        Args:
            sends: (peer, contiguous uint8 tensor [bytes]); not written to until the call returns.
            receives: (peer, contiguous uint8 tensor [bytes]) to fill, of exactly the size that is
                sent.

        Raises:
            TransferFailed: a peer is gone or silent, or a message has another size than its buffer.
        """

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce a tensor of int64 or float over all ranks, in place.

        Called by every rank in the same order: before the first byte (schedule digests) and after
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
