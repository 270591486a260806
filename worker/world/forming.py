"""How a group that forms over gloo ends once its epoch is given up: one rule for every wire.

Whoever gives an epoch up sets one flag, which the client of its store knows.  Waits at the store
ask it themselves.  A thread that connects waits in C++, so another one asks the flag and cuts what
was connected meanwhile.  A member that only listens for a peer has nothing to cut, and connections
of NCCL are never cut, as its threads may not end then: both end by `migration.transport.FORM_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from worker.control.connections import connections, cut
from worker.control.store_client import StoreClient

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOK_S = 0.02  # between two looks at the flag
# To end what forms.  Afterwards the next epoch may connect, whose connections nobody is to cut: it
# waits for twice as long (`worker.rank.preparation.END_S`).
LIMIT_S = 2.5


@contextmanager
def ends_if_given_up(store: Store, end: Callable[[], object] | None = None) -> Iterator[None]:
    """End what is done within once the epoch of `store` is given up, as long as it is not over.

    `end` is called again and again: gloo tries to connect four times.  Without it all connections
    that were made meanwhile are cut.
    """
    if not isinstance(store, StoreClient):  # one of torch's own: nobody can give it up
        yield
        return
    before, is_over = connections(), threading.Event()

    def watch() -> None:
        while not store.is_given_up:
            if is_over.wait(LOOK_S):
                return
        until_s = time.monotonic() + LIMIT_S
        while not is_over.wait(LOOK_S) and time.monotonic() < until_s:
            if end is not None:
                end()
            else:
                cut(connections() - before)

    watching = threading.Thread(target=watch, name="watch-forming", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
