"""`Transport` over NCCL: messages in rounds, each round one group, beside a control transport.

Device tensors travel on a wire; what decides (the digest of the transfer, counters, digests of the
state) is host tensors on a transport below, which also notices a peer that dies: NCCL does not, and
a receive that was ended from outside holds garbage that looks like numbers.
Invariant: the flag is set before anything ends, and is asked after every number that is read.
Nothing here has run on a GPU; the tests' wire keeps NCCL's law (`tests/simulated_device`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from migration.errors import TransferFailed
from migration.transfer import MAX_OPERATIONS
from migration.transport import END_S, Messages, Pending, ReduceOp, Transport
from planner.wording import first_line

if TYPE_CHECKING:
    import torch

Waiting = Callable[[], AbstractContextManager[None]]


class Awaited(Protocol):
    """An operation under way."""

    def wait(self) -> object:
        """Return when what is issued afterwards may use the tensors."""


class RoundWire(Protocol):
    """What a wire does for this transport; see `worker.world.wire.Wire`."""

    def exchange(self, sends: Messages, receives: Messages) -> Awaited:
        """Begin a round."""

    def abort(self) -> None:
        """End every wait, here and at the peers."""

    def own_end(self) -> str | None:
        """Why it has ended by itself; None: it has not."""

    def release(self) -> object:
        """Give the wire up; who drops the answer frees it."""


class Breakable(Protocol):
    """What says that the transport is broken; see `worker.device.broken.Broken`."""

    def set(self, why: str) -> None:
        """Say why; the first reason stays."""

    def check(self) -> None:
        """Go on only while it stands; ConnectionError."""


class NcclTransport:
    """One rank's membership; see `Transport`.

    Attributes:
        broken: the flag of this transport.
    """

    in_rounds = True

    def __init__(
        self,
        control: Transport,
        wire: RoundWire,
        device: torch.device,
        numbers: tuple[
            Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor, torch.Tensor], None]
        ],
        broken: Breakable,
        cut: Callable[[], object],
        waiting: Waiting = nullcontext,
    ) -> None:
        """Stand on a control transport and a wire of the same ranks.

        Args:
            control: takes host tensors.
            wire: takes tensors of the device.
            device: where the tensors of messages live.
            numbers: (reads a tensor of the device, then asks `broken`; writes a host tensor there).
            broken: set before anything ends.
            cut: ends the connections of `control`.
            waiting: entered while the host awaits what a peer has a part in.  A wait for a device
                is never left behind: it ends by the flag, or says that the device does not answer.
        """
        self.rank, self.size, self.device = control.rank, control.size, device
        self.bytes_sent = self.bytes_received = 0
        self.broken = broken
        self._control, self._cut = control, cut
        self._wire: RoundWire | None = wire
        self._read, self._write = numbers
        self.waiting = waiting

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transport.host`."""
        with self.waiting():
            found = self._read(tensor)
        wire = self._wire
        if wire is not None and (why := wire.own_end()) is not None:
            self.break_(why)
            self.broken.check()
        return found

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Transport.fill`."""
        self._write(target, source)

    def post_send(self, peer: int, tensor: torch.Tensor) -> Pending:
        """Refused: outside a round two ranks that both send first would wait for ever."""
        raise _outside(f"to rank {peer}", tensor)

    def post_receive(self, peer: int, tensor: torch.Tensor) -> Pending:
        """Likewise."""
        raise _outside(f"from rank {peer}", tensor)

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        """See `Transport.exchange`."""
        if len(sends) + len(receives) > MAX_OPERATIONS:
            raise TransferFailed(
                f"a round has {len(sends) + len(receives)} operations, {MAX_OPERATIONS} are "
                "allowed; number the rounds by `Transfer.rounds`"
            )
        wire = self._live()
        self.bytes_sent += sum(tensor.nbytes for _, tensor in sends)
        self.bytes_received += sum(tensor.nbytes for _, tensor in receives)
        try:
            work = wire.exchange(sends, receives) if sends or receives else None
        except RuntimeError as error:
            raise TransferFailed(f"rank {self.rank} lost a peer: {first_line(error)}") from None
        return _Round(self, work)

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport.all_reduce_`; on the control transport."""
        self._live()
        self._control.all_reduce_(tensor, op)

    def break_(self, why: str, limit_s: float = END_S) -> None:
        """End every wait, from whatever thread: the flag first, then the wire, by a deadline."""
        self.broken.set(why)
        if (wire := self._wire) is not None:
            _in_time(wire.abort, limit_s)
            self._cut()

    def close(self, *, wait: bool = False) -> None:
        """See `Transport.close`; the device is idle, or the wire is broken."""
        wire, self._wire = self._wire, None
        if wire is None:
            return
        self.broken.set(f"rank {self.rank} has closed this transport")

        def end() -> None:
            wire.abort()
            wire.release()

        _in_time(end)
        self._control.close(wait=wait)
        self._cut()  # the peers are to notice, whoever still watches here

    def check(self) -> None:
        """Go on only while this transport stands.

        Raises:
            TransferFailed: it has broken, or is closed.
        """
        try:
            self.broken.check()
        except ConnectionError as error:
            raise TransferFailed(str(error)) from None

    def _live(self) -> RoundWire:
        if self._wire is None:
            raise TransferFailed(f"rank {self.rank} has closed this transport; form a new one")
        self.check()
        return self._wire


class _Round:
    """A round under way."""

    def __init__(self, transport: NcclTransport, work: Awaited | None) -> None:
        self._transport, self._work = transport, work

    def wait(self) -> None:
        """See `Pending.wait`; what came counts once `NcclTransport.host` has read it."""
        try:
            if self._work is not None:
                with self._transport.waiting():
                    self._work.wait()
        except RuntimeError as error:
            raise TransferFailed(
                f"rank {self._transport.rank} lost a peer: {first_line(error)}"
            ) from None
        self._transport.check()


def _outside(way: str, tensor: torch.Tensor) -> TransferFailed:
    return TransferFailed(
        f"a message of {tensor.nbytes} bytes {way} is outside a round; use `exchange`"
    )


def _in_time(work: Callable[[], object], limit_s: float = END_S) -> None:
    ending = threading.Thread(target=work, name="end-transport", daemon=True)
    try:
        ending.start()
    except RuntimeError:  # no thread is left
        work()
        return
    ending.join(limit_s)
