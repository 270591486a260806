"""migration/nccl_transport.py: who awaits a peer by its device says so."""

from __future__ import annotations

import threading

import torch
from torch.distributed import HashStore

from tests.fakes.gloo_group import form_gloo
from worker.device.device import CpuDevice
from worker.rank.process import GlooServices
from worker.world.nccl_wire import NcclWire


class Watched(CpuDevice):
    """Tells how the rank stands while its numbers are read."""

    def __init__(self, activity):
        self._activity, self.seen = activity, []

    def host(self, tensor, broken=None):
        me = threading.get_ident()
        self.seen.append((self._activity.waiting, self._activity.leave_behind(me)))
        return super().host(tensor, broken)


def test_a_rank_that_reads_what_a_peer_sends_waits_for_it_and_then_makes_progress():
    """Else its agent kills it as stuck, for what a slow peer or a long move takes."""
    services = GlooServices(emulate=False, store_key="")
    wire = NcclWire.over(form_gloo)
    services.payload = services.payload._replace(name="nccl", form_wire=wire)
    services.device = Watched(services.activity)
    transport = services.form_transport(HashStore(), "move", 0, 1)
    before = services.activity.progress
    transport.host(torch.ones(1))
    assert services.device.seen == [(True, False)]
    assert services.activity.progress > before
    transport.close(wait=True)
