"""All ranks of an epoch are there before any of them starts to form its world.

Torch cannot be interrupted while it waits for a peer that died, so the wait is ours: a rank that is
told to give the epoch up (a peer was lost) stops waiting within `POLL_S`, and halts with its state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from worker.errors import MeetingFailed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

POLL_S = 0.001


def meet(
    store: Store, epoch: int, size: int, given_up: Callable[[], bool], timeout_s: float
) -> None:
    """Return once all ranks of an epoch have called this at its store.

    Args:
        store: that the epoch meets at.
        epoch: whose world is to be formed.
        size: number of its ranks.
        given_up: asked while waiting for the others.
        timeout_s: to wait at most.

    Raises:
        MeetingFailed: the epoch was given up, or the others did not come in time.
        RuntimeError: the store is gone (torch's DistError).
    """
    here, complete = f"epoch{epoch}/here", f"epoch{epoch}/complete"
    if store.add(here, 1) == size:
        store.set(complete, "")
    deadline = time.monotonic() + timeout_s
    while not store.check([complete]):
        if given_up():
            raise MeetingFailed(f"epoch {epoch} was given up before all its ranks were there")
        if time.monotonic() > deadline:
            raise MeetingFailed(
                f"{store.add(here, 0)} of the {size} ranks of epoch {epoch} came within "
                f"{timeout_s:g} s"
            )
        time.sleep(POLL_S)
