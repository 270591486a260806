"""What ranks in processes of their own find of groups that form by handles."""

from __future__ import annotations

import threading
import time

LIMIT_S = 30.0


def _world(store, epoch, rank, size, sets, form, nodes="abc"):
    from worker.control.activity import Activity
    from worker.device.device import CPU
    from worker.world.nccl_wire import NcclWire
    from worker.world.world import World

    wire = NcclWire.over(form)
    return World(
        store, epoch, rank, size, sets, Activity(), device=CPU, nodes=nodes, form_wire=wire
    )


def mixed_versions(rank, store):
    """The code of the refusal of each rank."""
    from tests.fakes.gloo_group import GlooGroup
    from worker.errors import DeviceUnusable

    try:
        GlooGroup(store, "mixed", rank, 2, version=(2, 30, rank))
    except DeviceUnusable as error:
        return error.code
    return None


def shares_a_gpu(rank, store):
    """[code, field] of the refusal of each rank, of an older NCCL and of one that was not told."""
    from tests.fakes.gloo_group import GlooGroup
    from worker.errors import DeviceUnusable

    found = []
    for version in ((2, 29, 9), (2, 30, 7)):
        try:
            GlooGroup(store, f"shared{version}", rank, 2, version=version, gpu="GPU-1")
        except DeviceUnusable as error:
            found.append([error.code, error.field])
    apart = GlooGroup(store, "apart", rank, 2, version=(2, 21, 5), gpu=f"GPU-{rank}")
    store.set(f"stands{rank}", "yes")
    store.wait(["stands0", "stands1"])  # who leaves earlier closes what the other one connects
    del apart
    return found


def does_not_connect(rank, store):
    """Kind and sentence of what a world and a transport say of a peer that met and never connects.

    As where NCCL connects while it forms, and the network between the GPUs hangs.
    """
    import functools

    from migration.gloo_transport import GlooTransport
    from tests.fakes.gloo_group import GlooGroup
    from worker.device.device import CPU
    from worker.device.fabric import named
    from worker.error_kinds import describe_error
    from worker.errors import FabricHangs
    from worker.world.nccl_groups import Own, meet
    from worker.world.nccl_wire import NcclWire
    from worker.world.payload import nccl_transport

    if rank == 1:
        for name in ("epoch1/group0", "move/payload"):
            if name.startswith("move"):
                GlooTransport.form(store, "move", 1, 2, LIMIT_S)
            meet(store, name, 1, 2, "gloo:1:-1:1:", Own((2, 30, 7)))
        store.wait(["tried"])
        return None
    group, nodes = functools.partial(GlooGroup, deadline_s=1.0), ("here", "there")
    found, start_s = [], time.monotonic()

    def form(*where):
        return group(*where)

    def transport():
        with named(0, (0, 1), nodes):
            wire = NcclWire.over(form)
            nccl_transport(store, "move", 0, 2, form_wire=wire, device=CPU, patience_s=LIMIT_S)

    for begin in (lambda: _world(store, 1, 0, 2, ((0, 1),), form, nodes), transport):
        try:
            begin()
        except FabricHangs as error:
            found.append(describe_error(error))
    store.set("tried", "yes")
    return [found, time.monotonic() - start_s < LIMIT_S]


def tries(rank, store):
    """The first operations of a world of three, and that a peer that dies ends them."""
    import torch

    from planner.plans.ranks import RankMap
    from tests.fakes.gloo_group import form_gloo
    from tests.unit.worker.changes import plan
    from worker.world.stage_links import link_rounds

    ranks = RankMap.of(plan("1x1+1x1", "1x1"))
    sets = ((0, 2), (0, 1, 2))
    world = _world(store, 1, rank, 3, sets, form_gloo)
    found = {"late": world.connects_late, "held": []}
    found["held"].append(world.wire_bytes)
    world.try_links(link_rounds(ranks, rank))
    found["held"].append(world.wire_bytes)
    total = torch.tensor([float(rank)])
    world.everyone.all_reduce_(total)
    found["sum"] = world.host(total).tolist()
    store.set(f"summed{rank}", "yes")
    if rank == 0:  # it goes; nobody tells the others but the ring of sentinels
        store.wait(["summed1", "summed2"])
        world.break_()
        world.leave()
        return found
    start_s = time.monotonic()
    try:
        world.try_links(link_rounds(ranks, rank))
        found["ended"] = False
    except (ConnectionError, RuntimeError):
        found["ended"] = world.broken.is_set or time.monotonic() - start_s < LIMIT_S
    world.break_()
    world.leave()
    return found


def hangs(rank, store):
    """A first operation that a peer never joins ends by its deadline, with a sentence."""
    from tests.fakes.gloo_group import form_gloo
    from worker.error_kinds import describe_error
    from worker.errors import FabricHangs
    from worker.world import world as module

    module.TRY_S = 0.5
    world = _world(store, 1, rank, 2, ((0, 1),), form_gloo, ("here", "there"))
    if rank == 1:
        store.wait(["ended"])
        world.break_()
        return None
    said = None
    try:
        world.try_links(())
    except FabricHangs as error:
        said = [describe_error(error)[0], str(error)]
    store.set("ended", "yes")
    return said


def breaks(_rank, store):
    """Offences at the end of a world with two communicators that hang, and of a mutant."""
    import torch

    from tests.simulated_device.device import SimulatedDevice
    from tests.simulated_device.recorded_wire import RecordedWire
    from tests.simulated_device.rules import RULES
    from worker.control.activity import Activity
    from worker.world.group import Group
    from worker.world.world import World

    device, found = SimulatedDevice(), {}
    right = Group.abort_all

    def one_by_one(groups):
        for group in groups:
            if group._wire is not None:
                group._wire.abort()

    for name, end in (("right", right), ("one by one", one_by_one)):
        Group.abort_all = staticmethod(end)
        before = RULES.count("aborts one by one")
        world = World(
            store, len(found) + 1, 0, 1, ((0,), (0,)), Activity(), device=device,
            form_wire=RecordedWire.form,
        )  # fmt: skip
        other = RecordedWire.form(store, f"other{name}", 0, 1)
        world.groups[0, 0] = Group((0,), other, Activity())
        for group in world.groups.values():
            group.start_all_reduce_(device.put(torch.ones(1)))  # and nobody awaits it
        world.break_()
        found[name] = RULES.count("aborts one by one") - before
        world.leave()
    Group.abort_all = staticmethod(right)
    return found


def frees(_rank, store):
    """What is left of a world of a device once it was left: no wire, and no thread that frees."""
    from tests.fakes.gloo_group import form_gloo

    world = _world(store, 1, 0, 1, ((0,),), form_gloo)
    world.leave()
    names = {thread.name for thread in threading.enumerate()}
    return ["leave-world" in names, len(world.groups)]


def ends_by_itself(_rank, store):
    """What world and move say of numbers that are read after torch has ended a communicator."""
    import torch
    from torch._C import _distributed_c10d as c10d

    from migration.errors import TransferFailed
    from tests.fakes.gloo_group import form_gloo
    from tests.simulated_device.device import SimulatedDevice
    from worker.world.nccl_wire import NcclWire
    from worker.world.payload import nccl_transport

    formed, device, found = [], SimulatedDevice(), []

    def form(*where):
        formed.append(form_gloo(*where))
        return formed[-1]

    def end():
        for one in formed:
            one.get_error = lambda: c10d.ErrorType.COMM_ERROR

    world = _world(store, 1, 0, 1, ((0,),), form)
    world.device, world.size = device, 2  # as if a peer had a part in its numbers
    number = device.put(torch.ones(1))
    found.append(world.host(number).tolist())
    end()
    try:
        world.host(number)
    except ConnectionError as error:
        found.append(str(error))
    transport = nccl_transport(
        store, "move", 0, 1, form_wire=NcclWire.over(form), device=device, patience_s=LIMIT_S
    )
    found.append(transport.host(number).tolist())
    end()
    try:
        transport.host(number)
    except (ConnectionError, TransferFailed) as error:
        found.append(str(error))
    return [*found, world.broken.is_set, transport.broken.is_set]
