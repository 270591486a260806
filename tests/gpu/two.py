"""Checks of two GPUs of one machine: rates of their links, a move by size, and a whole life.

With `dry` the same code runs over gloo's groups and on the simulated device.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.cases import has_failed, tried

Found = dict[str, Any]
LIMIT_S = 60.0
# How messages travel, and the settings of NCCL that make them.
WAYS = {
    "nvlink": {},
    "network": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    "staged": {},
}
SIZES = {"cuda": (1 << 20, 1 << 24, 1 << 28), "dry": (1 << 10, 1 << 14)}  # bytes of a message
REPEATS = {"cuda": 10, "dry": 1}
HIDDEN = {"cuda": (1024, 2048), "dry": (32,)}  # of the models whose state moves
FAMILY = "llama3"


def _device(way: str, rank: int) -> Any:
    if way == "dry":
        from worker.device.device import CPU

        return CPU
    from worker.device.choice import own_device

    return own_device("cuda", rank)


def _transport(way: str, link: str, rank: int, store: Any, name: str) -> Any:
    """(the transport of two ranks, its device)."""
    from migration.gloo_transport import GlooTransport
    from tests.gpu.nccl import classes, form_of
    from tests.gpu.ranks import device_of_way
    from worker.world.payload import nccl_transport
    from worker.world.staged_transport import StagedTransport

    if link == "staged":
        device = device_of_way(way) if way == "dry" else _device(way, rank)
        gloo = GlooTransport.form(store, name, rank, 2, LIMIT_S)
        return StagedTransport(gloo, device), device
    device = _device(way, rank)
    form_wire = form_of(classes(way)[0], device)
    transport = nccl_transport(
        store, name, rank, 2, form_wire=form_wire, device=device, patience_s=LIMIT_S
    )
    return transport, device


def _rates(way, link, rank, store):
    """{bytes of a message: bytes per second, each way, both at once}, and whether all came."""
    import torch

    transport, device = _transport(way, link, rank, store, "rates")
    rates, came_all = {}, True
    for size in SIZES[way]:
        sent = device.put(torch.full((size // 4,), float(rank)))
        came = torch.empty_like(sent)
        for repeat in range(REPEATS[way] + 1):
            if repeat == 1 or REPEATS[way] == 1:
                start_s = time.monotonic()  # the first one connects
            transport.exchange([(1 - rank, sent)], [(1 - rank, came)]).wait()
            first = transport.host(came[:1])
        rates[size] = REPEATS[way] * size / (time.monotonic() - start_s)
        came_all &= float(first) == 1.0 - rank
    transport.all_reduce_(torch.zeros(1), "sum")  # both have read
    transport.close(wait=way == "dry")
    return {"bytes_per_s": rates, "came": came_all}


def _moves(way, link, rank, store):
    """{bytes of state: seconds} of a move from rank 0 to a rank that joins, by size."""
    import torch

    from migration.exchange import exchange_state
    from planner.model.shape import ModelShape
    from planner.plans.ranks import RankMap
    from tests.unit.worker.changes import change, plan
    from worker.control.activity import Activity
    from worker.rank.move import plan_move
    from worker.state.held_state import HeldState, find_tensor
    from worker.state.shards import TargetShards

    found = {}
    for hidden in HIDDEN[way]:
        model = ModelShape(
            name="moved", layers=2, hidden=hidden, heads=4, kv_heads=4, ffn=4 * hidden, vocab=256
        )
        old, new = plan("1x2"), plan("1x2", "1x2")
        transport, device = _transport(way, link, rank, store, f"move{hidden}")
        carrier = "staged" if link == "staged" else "nccl"
        move = plan_move(model, change(old, new), "tiny-a-0", rank, carrier)
        held, activity = HeldState(model), Activity()
        if rank == 0:
            (seat,) = RankMap.of(old).seats
            target = TargetShards.of(model, seat, held, activity, "fp32", device)
            held.add_shards(seat, target.shards)
        target = TargetShards.of(model, move.seat, held, activity, "fp32", device)

        def write(wanted, target=target, model=model):
            tensor = find_tensor(model, wanted.piece.tensor)
            return target.view(tensor, wanted.box, wanted.parts)

        transport.all_reduce_(torch.zeros(1), "sum")
        start_s = time.monotonic()
        exchange_state(move.transfer, transport, held.read_slice, write, epoch=2, step=1)
        transport.all_reduce_(torch.zeros(1), "sum")
        found[move.transfer.num_bytes] = time.monotonic() - start_s
        transport.close(wait=way == "dry")
    return found


def two_rates(way: str) -> Found:
    """Rates of NVLink, of the network alone, and through staging memory."""
    from tests.unit.worker.ranks import run_ranks

    found = {}
    for link, settings in WAYS.items():
        with _environment(way, settings):
            ranks = f"tests.gpu.two:{way}_rates_{link}"
            found |= tried(link, partial(run_ranks, ranks, 2, LIMIT_S))
    is_right = not has_failed(found) and all(
        rank["came"] for ranks in found.values() for rank in ranks
    )
    return {"links": found, "ok": is_right}


def two_moves(way: str) -> Found:
    """A move of state by size, over NCCL and beside it through staging memory."""
    from tests.unit.worker.ranks import run_ranks

    found = {}
    for link in ("nvlink", "staged"):
        with _environment(way, {}):
            ranks = f"tests.gpu.two:{way}_moves_{link}"
            found |= tried(link, partial(run_ranks, ranks, 2, LIMIT_S))
    is_right = not has_failed(found) and len({str([*of[0]]) for of in found.values()}) == 1
    return {"seconds": found, "ok": is_right}


def two_lives(way: str) -> Found:
    """A life with changes of plan and a peer that is killed in a step, over NCCL and staged."""
    from tests.simulated_device.lives import lives
    from tests.unit.worker.data.lines import prepared_lines

    ways = ("cpu", *(("nccl", "cuda") if way == "cuda" else ("recorded", "staged")))
    names = [f"{FAMILY}:{one}" for one in ways]
    with tempfile.TemporaryDirectory() as folder, _environment(way, {}):
        data = Path(folder) / "data"
        data.mkdir()
        told = lives(Path(folder), prepared_lines(data), names, LIMIT_S * len(names) * 5)
    losses = [[v for k, v in told[name][0] if k == "loss"] for name in names]
    apart = [max(abs(a - b) for a, b in zip(losses[0], of, strict=True)) for of in losses[1:]]
    lost = [v[:2] for name in names for k, v in told[name][0] if k == "lost"]
    is_near = max(apart) <= 1e-5  # in fp32: cos, exp and fma differ
    return {
        "apart": dict(zip(ways[1:], apart, strict=True)),
        "ok": is_near and lost == [[5, None]] * 3,
    }


@contextmanager
def _environment(way: str, further: dict[str, str]) -> Iterator[None]:
    """That of the ranks, before they import torch."""
    from worker.device.environment import environment_of

    before = dict(os.environ)
    os.environ.update({} if way == "dry" else {**environment_of("cuda"), **further})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


cuda_rates_nvlink, cuda_rates_network, cuda_rates_staged = (
    partial(_rates, "cuda", link) for link in WAYS
)
dry_rates_nvlink, dry_rates_network, dry_rates_staged = (
    partial(_rates, "dry", link) for link in WAYS
)
cuda_moves_nvlink, cuda_moves_staged = (
    partial(_moves, "cuda", link) for link in ("nvlink", "staged")
)
dry_moves_nvlink, dry_moves_staged = (partial(_moves, "dry", link) for link in ("nvlink", "staged"))
