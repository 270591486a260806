"""A group of gloo in the manner of NCCL's new class: formed by handles, messages as one group.

It stands below `NcclWire` on processors, so that the wire's own code runs on real processes.  Gloo
itself may do more than NCCL: it takes any order, and notices a dead peer.  `GarbageGroup` does not
notice one: who waits for it waits until somebody ends the group, and then goes on with garbage.
"""

from __future__ import annotations

import datetime
import threading

from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from migration.transport import FORM_S, AllOf
from worker.control.connections import connections, cut
from worker.world.nccl_groups import Own, join

VERSION = (2, 30, 7)
GROUP_BYTES = 9_650_000  # that it says to hold
GARBAGE = 0.25  # looks like a number
LIMIT_S = 25.0  # for somebody to end a group whose peer is gone


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


def form_gloo(store, name, place, size):
    """See `FormGroup`."""
    return GlooGroup(store, name, place, size)


class GarbageGroup(GlooGroup):
    """Ends its waits as NCCL does: without an error, and with garbage in what was awaited."""

    def __init__(self, *where, **options):
        self._ended = threading.Event()
        super().__init__(*where, **options)

    def allreduce(self, tensors, options):
        return self._begin(lambda: self._group.allreduce(tensors, options), tensors)

    def broadcast(self, tensors, options):
        return self._begin(lambda: self._group.broadcast(tensors, options), tensors)

    def _allgather_base(self, tensor, share):
        return self._begin(lambda: self._group._allgather_base(tensor, share), [tensor])

    def alltoall_base(self, received, *sent):
        return self._begin(lambda: self._group.alltoall_base(received, *sent), [received])

    def send(self, tensors, target, tag):
        self._round.append(self._begin(lambda: self._group.send(tensors, target, tag), []))

    def recv(self, tensors, source, tag):
        self._round.append(self._begin(lambda: self._group.recv(tensors, source, tag), tensors))

    def abort(self):
        self._ended.set()
        super().abort()

    def _begin(self, begin, awaited):
        try:
            work = begin()
        except RuntimeError:  # NCCL would queue it, and say nothing
            work = None
        return _Garbage(work, awaited, self._ended)


class _Garbage:
    """An operation of a group that says nothing of its end."""

    def __init__(self, work, awaited, ended):
        self._work, self._awaited, self._ended = work, awaited, ended

    def wait(self):
        is_done = self._work is not None
        if self._work is not None:
            try:
                self._work.wait()
            except RuntimeError:
                is_done = False
        if not is_done:
            assert self._ended.wait(LIMIT_S), "nobody ends the group of a peer that is gone"
        if self._ended.is_set():
            for tensor in self._awaited:
                tensor.fill_(GARBAGE)


def form_garbage(store, name, place, size):
    """Likewise, of groups that end with garbage."""
    return GarbageGroup(store, name, place, size)
