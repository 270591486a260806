"""Groups of gloo that no global registry knows: how they form, and how their messages are awaited.

Forming has a deadline once all members have met: a member that waits for a peer's connection waits
in C++ and has nothing that could be cut.  A group that stands is patient: gloo takes the patience
of collectives from the group, and that of a message from each wait (torch 2.15).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, ProcessGroupGloo, Store

from migration.transport import FORM_S

_TAG, _NEVER = 0, 1  # of messages, and of those that are never sent
_WAITS = 5  # gloo waits so many times its timeout for a connection (its transport/tcp/pair.cc)


class Message(NamedTuple):
    """A send or a receive under way; it keeps the connections of its group.

    Attributes:
        work: of torch.
        patience: of the wait.
    """

    work: dist.Work
    patience: timedelta

    def wait(self) -> object:
        """Return when it is done.

        Raises:
            RuntimeError: the peer is gone, or did not come in time.
        """
        return self.work.wait(self.patience)


class GlooGroup(NamedTuple):
    """A group that stands.

    Attributes:
        group: of torch.
        patience: of every wait.
    """

    group: ProcessGroup
    patience: timedelta

    def send(self, tensor: torch.Tensor, target: int) -> Message:
        """Begin to send a contiguous tensor."""
        return self._begin(self.group.send, tensor, target)

    def recv(self, tensor: torch.Tensor, source: int) -> Message:
        """Begin to receive into a tensor of the size that is sent."""
        return self._begin(self.group.recv, tensor, source)

    def watch(self, member: int) -> Message:
        """A message that a member never sends: it fails once the member is gone."""
        return self._begin(self.group.recv, torch.zeros(1), member, _NEVER)

    def _begin(
        self,
        begin: Callable[[list[torch.Tensor], int, int], dist.Work],
        tensor: torch.Tensor,
        member: int,
        tag: int = _TAG,
    ) -> Message:
        return Message(begin([tensor], member, tag), self.patience)


def form_gloo(
    store: Store, name: str, place: int, size: int, patience_s: float, form_s: float = FORM_S
) -> GlooGroup:
    """Meet the other members at the store, then connect to all of them.

    Args:
        store: of the epoch.
        name: of the group; it is never used twice.
        place: of this member.
        size: number of members.
        patience_s: for a member that is late at the store, and for every operation afterwards.
        form_s: for each member to connect once all have met; a fifth of it for its address.

    Raises:
        RuntimeError: the members did not come or connect in time, or the store is gone.
    """
    patience = timedelta(seconds=patience_s)
    prefixed = PrefixStore(name, store)
    prefixed.set(f"here{place}", "")
    prefixed.wait([f"here{member}" for member in range(size)], patience)
    limit = timedelta(seconds=min(form_s, patience_s) / _WAITS)
    group = ProcessGroupGloo(prefixed, place, size, limit)
    group._set_default_timeout(patience)
    # Backend and ProcessGroup have the same methods; torch's stubs know only the latter's.
    return GlooGroup(cast("ProcessGroup", group), patience)
