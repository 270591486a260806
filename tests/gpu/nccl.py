"""Checks of NCCL: groups of one rank, two ranks on one GPU, and a peer that goes in a kernel.

With `dry` the same code runs over gloo's groups on the processor, which form in the same way.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.cases import has_failed, tried

Found = dict[str, Any]
GROUPS = 4
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0"}
LIMIT_S = 20.0
START_S = 10.0 * float(os.environ.get("PATIENCE", "1"))  # of two processes and their contexts
CLASSES = ("new", "old")


def classes(way: str) -> tuple[str, ...]:
    """The classes of groups that this torch has."""
    if way == "dry":
        return ("gloo",)
    from worker.world.payload import own_nccl

    nccl = own_nccl()
    has_old = nccl.version is not None
    return tuple(name for name in CLASSES if (nccl.uses_new if name == "new" else has_old))


def _device(way: str) -> Any:
    if way == "dry":
        from worker.device.device import CPU

        return CPU
    from worker.device.choice import own_device

    return own_device("cuda", 0)


def form_of(name: str, device: Any) -> Callable[..., Any]:
    """Forms wires of a class."""
    from worker.world.nccl_wire import NcclWire

    if name == "gloo":
        from tests.fakes.gloo_group import form_gloo

        return NcclWire.over(form_gloo)
    from worker.world.nccl_groups import form_new, form_old

    forms = form_new if name == "new" else form_old
    return NcclWire.over(forms(device.torch_device, device.identity))


def _alone(way, rank, store):
    """{class: see `_groups_of`, or its error}."""
    device, found = _device(way), {}
    for name in classes(way):
        found |= tried(name, partial(_groups_of, name, device, store))
    return found


def _groups_of(name, device, store):
    """Seconds to form each group, its bytes, and how far another thread got meanwhile."""
    import torch

    from worker.world.wire import abort_all

    form, steps, stops = form_of(name, device), [], threading.Event()
    square = device.put(torch.eye(256))

    def trains():
        while not stops.is_set():
            device.host((square @ square).sum())
            steps.append(time.monotonic())

    beside = threading.Thread(target=trains, daemon=True)
    beside.start()
    wires, seconds = [], []
    try:
        for number in range(GROUPS):
            start_s = time.monotonic()
            wires.append(form(store, f"{name}{number}", 0, 1))
            seconds.append(time.monotonic() - start_s)
    finally:
        stops.set()
        beside.join(LIMIT_S)
    one = device.put(torch.ones(1))
    for wire in wires:
        wire.all_reduce(one, "sum").wait()
    total = device.host(one).tolist()
    held = [wire.held_bytes() for wire in wires]
    start_s = time.monotonic()
    abort_all(wires)
    return {
        "form_s": seconds,
        "bytes": held,
        "steps_beside": len(steps),
        "sum": total,
        "abort_s": time.monotonic() - start_s,
    }


def _pair(way, name, rank, store):
    """The contract's sums and rounds of two ranks, and whether a round went both ways."""
    import torch

    from worker.device.device import CPU
    from worker.world.payload import nccl_transport

    device = _device(way)
    form = form_of(name, device)
    wire = form(store, f"{name}/wire", rank, 2)
    one = device.put(torch.tensor([float(rank)]))
    wire.all_reduce(one, "sum").wait()
    shares = device.put(torch.tensor([-1.0, -1.0]).index_fill_(0, torch.tensor([rank]), rank))
    wire.all_gather(shares).wait()
    transport = nccl_transport(
        store, f"{name}/transport", rank, 2, form_wire=form, device=device, patience_s=LIMIT_S
    )
    sent = device.put(torch.full((1 << 22,), float(rank)))
    came = torch.empty_like(sent)
    start_s = time.monotonic()
    transport.exchange([(1 - rank, sent)], [(1 - rank, came)]).wait()
    found = {
        "sum": device.host(one).tolist(),
        "gathered": device.host(shares).tolist(),
        "came": transport.host(came[:1]).tolist(),
        "exchange_s": time.monotonic() - start_s,
    }
    transport.all_reduce_(torch.zeros(1), "sum")  # both have read
    transport.close(wait=device is CPU)
    wire.abort()
    wire.release()
    return found


def _gone(way, name, rank, store):
    """Seconds from the end of a wire whose peer has gone to a device that answers again."""
    import torch

    from worker.world.wire import abort_all

    device = _device(way)
    wire = form_of(name, device)(store, "gone", rank, 2)
    one = device.put(torch.ones(1))
    wire.all_reduce(one, "sum").wait()  # both are connected
    device.host(one)
    if rank == 1:
        store.wait(["waiting"])
        store.set("gone", "now")
        return {"ended": True}
    ended, own = threading.Event(), store.clone()  # a wait keeps a client to itself

    def ends():
        own.wait(["gone"])
        abort_all([wire])
        ended.set()

    beside = threading.Thread(target=ends, daemon=True)
    start_s = time.monotonic()
    try:
        work = wire.all_reduce(one, "sum")
        store.set("waiting", "now")
        beside.start()
        work.wait()
        device.settle()
    except Exception as error:
        return {"error": str(error).partition("\n")[0], "ended": ended.wait(LIMIT_S)}
    return {"seconds": time.monotonic() - start_s, "ended": ended.wait(LIMIT_S)}


def nccl_alone(way: str) -> Found:
    """Groups of one rank by each class, while another thread computes."""
    from tests.unit.worker.ranks import run_ranks

    if (why := why_not_dry(way)) is not None:
        return {"left_out": why, "ok": None}
    with _settings(way, {}):
        (found,) = run_ranks(f"tests.gpu.nccl:{way}_alone", 1)
    is_summed = not has_failed(found) and all(of["sum"] == [1.0] for of in found.values())
    return {"classes": found, "ok": is_summed}


def nccl_pair(way: str) -> Found:
    """Two ranks on one GPU: a sum, shares in their places, and a round both ways."""
    if (why := why_not_shared(way)) is not None:
        return {"left_out": why, "ok": None}
    found = _of_two(way, "pair")
    is_right = not has_failed(found) and all(
        (of["sum"], of["gathered"], of["came"]) == ([1.0], [0.0, 1.0], [1.0 - rank])
        for ranks in found.values()
        for rank, of in enumerate(ranks)
    )
    return {"classes": found, "ok": is_right}


def nccl_gone(way: str) -> Found:
    """A peer goes while its partner waits in a kernel: which class ends it, and after how long?"""
    if (why := why_not_shared(way)) is not None:
        return {"left_out": why, "ok": None}
    found = _of_two(way, "gone")
    is_ended = not has_failed(found) and all(of[0]["ended"] for of in found.values())
    return {"classes": found, "ok": is_ended}


def _of_two(way: str, what: str) -> Found:
    """{class: what both ranks found, or its error}; a class that hangs leaves time for the next."""
    from tests.unit.worker.ranks import run_ranks

    found: Found = {}
    for name in classes(way):
        ranks = f"tests.gpu.nccl:{way}_{what}_{name}"
        with _settings(way, SHARED):
            found |= tried(name, partial(run_ranks, ranks, 2, LIMIT_S + START_S))
    return found


def why_not_dry(way: str) -> str | None:
    """Why groups of gloo cannot stand for NCCL's; None: they can, or need not."""
    from worker.world.nccl_groups import has_new

    is_old = way == "dry" and not has_new()
    return "gloo of this torch forms no group by handles" if is_old else None


def why_not_shared(way: str) -> str | None:
    """Why two ranks cannot share the GPU; None: they can."""
    if way == "dry":
        return why_not_dry(way)
    from worker.device.gpus import Nvml
    from worker.errors import DeviceUnusable
    from worker.world.nccl_groups import check_shared
    from worker.world.payload import own_nccl

    version = own_nccl().version
    try:
        check_shared(version or (0, 0, 0), {**os.environ, **SHARED})
    except DeviceUnusable as error:
        return f"{error} ({len(Nvml().gpus())} GPUs are here)"
    return None


@contextmanager
def _settings(way: str, further: dict[str, str]) -> Iterator[None]:
    """The environment of the ranks, before they import torch; NCCL's warnings go to the log."""
    from worker.device.environment import environment_of

    if way == "dry":
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        says = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{folder}/%p"}
        os.environ.update({**environment_of("cuda"), **further, **says})
        try:
            yield
        finally:
            for said in sorted(Path(folder).iterdir()):
                sys.stderr.write(said.read_text(errors="replace"))


cuda_alone, dry_alone = (partial(_alone, way) for way in ("cuda", "dry"))
cuda_pair_new, cuda_pair_old = (partial(_pair, "cuda", name) for name in CLASSES)
dry_pair_gloo = partial(_pair, "dry", "gloo")
cuda_gone_new, cuda_gone_old = (partial(_gone, "cuda", name) for name in CLASSES)
dry_gone_gloo = partial(_gone, "dry", "gloo")
