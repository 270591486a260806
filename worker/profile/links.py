"""Measure links: messages and all-reduces by size, inside a node and between pairs of nodes.

Inside a node one process per device is started; between nodes the caller's launcher starts one
process per node (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and each node is measured with its
neighbour in its link domain only: O(nodes) pairs, not all of them.
Invariant: a time is the smallest of its repeats at the slower end, and a smaller message never
takes longer than a larger one.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch._C._distributed_c10d import TCPStore

from planner.model.workload import GpuWire
from planner.profiles.entries import LinkCost
from worker.device.cuda import CudaDevice
from worker.device.device import CPU, Device
from worker.world.gloo_wire import GlooWire
from worker.world.payload import form_nccl, own_nccl
from worker.world.staged_wire import StagedWire
from worker.world.wire import FormWire

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

SIZES = tuple(1 << power for power in range(10, 29, 2))  # 1 KiB to 256 MiB
TIMEOUT = timedelta(seconds=120)
Points = list[tuple[float, float]]  # (bytes, seconds)


class Inside(NamedTuple):
    """Links of some devices of a node.

    Attributes:
        message: between two of them.
        ring: all-reduce among all.
        group_bytes: of a device, that the wire holds for a group of them; 0: it does not say.
    """

    message: LinkCost
    ring: LinkCost
    group_bytes: int


def link_of(points: Sequence[tuple[float, float]]) -> LinkCost:
    """A link from its times: the smallest message is its latency, the two largest its rate."""
    least_s = math.inf
    falling: Points = []
    for size, seconds in sorted(points, reverse=True):  # other load only ever adds to a time
        least_s = min(least_s, seconds)
        falling.append((size, least_s))
    ordered = tuple(reversed(falling))
    if len(ordered) == 1:
        size, seconds = ordered[0]
        return LinkCost(seconds, size / seconds, ordered)
    (before, before_s), (last, last_s) = ordered[-2:]
    rate = (last - before) / (last_s - before_s) if last_s > before_s else last / last_s
    return LinkCost(ordered[0][1], rate, ordered)


def inside_node(
    device: str,
    ranks: int,
    sizes: Sequence[int] = SIZES,
    repeats: int = 10,
    wire: GpuWire = "nccl",
) -> Inside:
    """Links of `ranks` devices of this node.

    A staged wire is the worker's own, and several ranks may share a device.  The points of the
    all-reduce are by the 2 (R-1)/R bytes that a ring moves, as profiles keep them.
    """
    with multiprocessing.get_context("spawn").Manager() as shared:
        found: Any = shared.dict()
        multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            _inside, (ranks, device, tuple(sizes), repeats, _free_port(), wire, found), nprocs=ranks
        )
        message, reduced = list(found["message"]), list(found["reduced"])
        held_bytes = int(found.get("group_bytes", 0))
    volume = 2 * (ranks - 1) / ranks
    ring = link_of([(volume * size, seconds) for size, seconds in reduced])
    return Inside(link_of(message), ring, held_bytes)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _inside(
    rank: int,
    ranks: int,
    device: str,
    sizes: tuple[int, ...],
    repeats: int,
    port: int,
    wire: GpuWire,
    found: Any,
) -> None:
    torch.set_num_threads(1)
    if wire == "staged":
        _inside_staged(rank, ranks, device, sizes, repeats, port, found)
        return
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address | {"RANK": str(rank), "WORLD_SIZE": str(ranks)})
    _join(device, rank)
    message = _pair(rank, 0, 1, device, sizes, repeats) if rank < 2 else []
    dist.barrier()
    reduced = _by_size(sizes, repeats, device, lambda buffer: dist.all_reduce(buffer))
    held_bytes = 0
    if device == "cuda":
        store, own = TCPStore("127.0.0.1", port, wait_for_workers=False), CudaDevice(rank)
        held_bytes = group_bytes(form_nccl(own, own_nccl()), store, rank, ranks, own)
    if rank == 0:
        found["message"], found["reduced"] = message, reduced
        found["group_bytes"] = held_bytes
    dist.destroy_process_group()


def group_bytes(form_wire: FormWire, store: Store, rank: int, ranks: int, device: Device) -> int:
    """Bytes of the device that the worker's wire holds for a group of `ranks` members.

    A wire connects at its first operations: a sum among all, and a message to each neighbour.
    """
    wire = form_wire(store, "group-bytes", rank, ranks)
    one = device.put(torch.ones(1))
    wire.all_reduce(one, "sum").wait()
    came = torch.empty_like(one)
    wire.exchange([((rank + 1) % ranks, one)], [((rank - 1) % ranks, came)]).wait()
    device.host(came)
    held_bytes = wire.held_bytes()
    wire.release()
    return held_bytes


def _inside_staged(
    rank: int, ranks: int, device: str, sizes: tuple[int, ...], repeats: int, port: int, found: Any
) -> None:
    """As `_inside`, by the wire that ranks train on where NCCL cannot be had."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    own: Device = CPU
    if device == "cuda":
        own = CudaDevice(rank % torch.cuda.device_count())
    store = TCPStore("127.0.0.1", port, ranks, rank == 0, wait_for_workers=False)
    wire = StagedWire.over(GlooWire.form, own)(store, "links", rank, ranks)

    def there_and_back(buffer: torch.Tensor) -> None:
        for sender in (0, 1):
            (wire.send if rank == sender else wire.recv)(buffer, 1 - rank).wait()

    def reduce(buffer: torch.Tensor) -> None:
        wire.all_reduce(buffer, "sum").wait()

    points = _by_size(sizes, repeats, device, there_and_back) if rank < 2 else []
    reduce(torch.zeros(1, device=own.torch_device))  # until the pair is done
    reduced = _by_size(sizes, repeats, device, reduce)
    if rank == 0:
        found["message"] = [(size, seconds / 2) for size, seconds in points]
        found["reduced"] = reduced
    wire.release()


def _join(device: str, local_rank: int) -> None:
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=TIMEOUT)


def _by_size(
    sizes: Sequence[int], repeats: int, device: str, work: Callable[[torch.Tensor], object]
) -> Points:
    points = []
    for size in sizes:
        buffer = torch.zeros(max(1, size // 4), device=device)
        taken = []
        for index in range(2 + repeats):
            start = time.perf_counter()
            work(buffer)
            if device == "cuda":
                torch.cuda.synchronize()
            if index >= 2:
                taken.append(time.perf_counter() - start)
        points.append((float(size), min(taken)))
    return points


def _pair(
    rank: int, one: int, other: int, device: str, sizes: Sequence[int], repeats: int
) -> Points:
    """One way from `one` to `other`: half of a round trip."""
    peer = other if rank == one else one

    def there_and_back(buffer: torch.Tensor) -> None:
        if rank == one:
            dist.send(buffer, peer)
            dist.recv(buffer, peer)
        else:
            dist.recv(buffer, peer)
            dist.send(buffer, peer)

    points = _by_size(sizes, repeats, device, there_and_back)
    return [(size, seconds / 2) for size, seconds in points]


def pairs_of(domains: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Ranks to measure: each node with the next one of its link domain."""
    pairs: list[tuple[int, int]] = []
    last: dict[str, int] = {}
    for rank, domain in enumerate(domains):
        if domain in last:
            pairs.append((last[domain], rank))
        last[domain] = rank
    return tuple(pairs)


def between_nodes(
    device: str, domain: str, sizes: Sequence[int] = SIZES, repeats: int = 10
) -> dict[tuple[int, int], LinkCost] | None:
    """Measure pairs of nodes; one process per node calls this under a launcher.

    Returns:
        The link of each pair by ranks on rank 0; None on the others.
    """
    _join(device, 0)
    rank, size = dist.get_rank(), dist.get_world_size()
    domains: list[Any] = [None] * size
    dist.all_gather_object(domains, domain)
    mine: dict[tuple[int, int], Points] = {}
    for one, other in pairs_of(domains):
        if rank in (one, other):
            points = _pair(rank, one, other, device, sizes, repeats)
            if rank == one:
                mine[one, other] = points
        dist.barrier()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    dist.destroy_process_group()
    if rank:
        return None
    return {pair: link_of(points) for part in gathered for pair, points in part.items()}
