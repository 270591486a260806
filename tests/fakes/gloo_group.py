"""A group of gloo in the manner of NCCL's new class: formed by handles, messages as one group.

It stands below `NcclWire` on processors, so that the wire's own code runs on real processes.  Gloo
itself may do more than NCCL: it takes any order, and notices a dead peer.
"""

from __future__ import annotations

import datetime

from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from migration.transport import FORM_S, AllOf
from worker.control.connections import connections, cut
from worker.world.nccl_groups import Formed, Own, join

VERSION = (2, 30, 7)
GROUP_BYTES = 9_650_000  # that it says to hold


class GlooGroup:
    """What `NcclWire` asks of a group of torch."""

    def __init__(self, store, name, place, size, *, version=VERSION, gpu="", deadline_s=FORM_S):
        before = connections()
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_default_device()]
        options._timeout = datetime.timedelta(days=1)
        options.enable_reconfigure = True
        group = ProcessGroupGloo(PrefixStore(name, store), place, size, options)
        join(group, store, name, place, size, Own(version, gpu), deadline_s)
        self._group, self._store, self._round = group, store, None
        self._own = connections() - before

    def __getattr__(self, name):
        return getattr(self._group, name)

    def _start_coalescing(self):
        self._round = []

    def send(self, tensors, target, tag):
        self._round.append(self._group.send(tensors, target, tag))

    def recv(self, tensors, source, tag):
        self._round.append(self._group.recv(tensors, source, tag))

    def _end_coalescing(self):
        works, self._round = self._round, None
        return AllOf(works)

    def memory_stats(self):
        return {"total": GROUP_BYTES}

    def abort(self):
        cut(self._own)  # gloo's own abort ends no wait


def form_gloo(store, name, place, size) -> Formed:
    """See `FormGroup`."""
    return Formed(GlooGroup(store, name, place, size))
