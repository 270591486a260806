"""One of two ranks that hand a state over in four ways, one after the other, each size anew.

    python -m benchmarks.transport.rank PORT RANK FOLDER BLOCKS...

Rank 0 receives and prints the seconds of each try as JSON.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from benchmarks.migration.changes import change_between
from migration.exchange import exchange_state
from migration.gloo_transport import GlooTransport
from migration.transfer import plan_transfer
from planner.model.shape import ModelShape
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from worker.control.activity import Activity
from worker.state.held_state import HeldState, find_tensor
from worker.state.shards import TargetShards

TRIES = 3
CHUNK_BYTES = 16_000_000
RECEIVER, SENDER = 0, 1
Seconds = dict[str, float]


def model_of(blocks: int) -> ModelShape:
    """A block of it, with its moments, has 38.5 MB."""
    return ModelShape(
        name="bench", layers=blocks, hidden=512, heads=8, kv_heads=8, ffn=1408, vocab=256
    )


def plan_on(gpu: int, blocks: int) -> Plan:
    """All of the model on one GPU."""
    template = FilledTemplate((Stage(gpu_type="a", tp=1, layers=blocks),), 1, (1,))
    return Plan((template,), (PlacedStage(0, 0, 0, "n", (gpu,)),))


class Pair:
    """This process and the other one."""

    def __init__(self, port: int, rank: int, folder: Path) -> None:
        torch.set_num_threads(1)
        self.rank, self.folder = rank, folder
        self.store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
        limit = datetime.timedelta(seconds=600)
        self.group = ProcessGroupGloo(PrefixStore("bare", self.store), rank, 2, limit)
        self.transport = GlooTransport.form(self.store, "ours", rank, 2, 600.0)
        self.socket = self._connect()

    def _connect(self) -> socket.socket:
        if self.rank == RECEIVER:
            listener = socket.create_server(("127.0.0.1", 0))
            self.store.set("raw", str(listener.getsockname()[1]))
            return listener.accept()[0]
        return socket.create_connection(("127.0.0.1", int(self.store.get("raw"))))

    def meet(self) -> None:
        """Both are here."""
        self.group.allreduce([torch.ones(1)]).wait()

    # -- the ways; each answers the seconds of its parts

    def raw(self, body: torch.Tensor) -> Seconds:
        """Bytes through one TCP connection."""
        begin_s, view = time.monotonic(), memoryview(body.numpy())
        if self.rank == SENDER:
            self.socket.sendall(view)
        else:
            while view:
                view = view[self.socket.recv_into(view) :]
        return {"raw socket": time.monotonic() - begin_s}

    def gloo(self, body: torch.Tensor) -> Seconds:
        """The same bytes in chunks, all posted at once."""
        begin_s, pending = time.monotonic(), []
        for start in range(0, len(body), CHUNK_BYTES):
            part = [body[start : start + CHUNK_BYTES]]
            send = self.rank == SENDER
            pending.append(self.group.send(part, 0, 0) if send else self.group.recv(part, 1, 0))
        for work in pending:
            work.wait()
        return {"bare gloo": time.monotonic() - begin_s}

    def ours(self, held: HeldState, target: TargetShards, blocks: int) -> Seconds:
        """The state itself, with headers and fingerprints, into its new place."""
        model = model_of(blocks)
        change = change_between(model, plan_on(SENDER, blocks), plan_on(RECEIVER, blocks))
        transfer = plan_transfer(change.held, change.needed, change.node_of)
        begin_s = time.monotonic()
        exchange_state(
            transfer,
            self.transport,
            held.read_slice,
            lambda part: target.view(find_tensor(model, part.piece.tensor), part.box),
            epoch=2,
            step=1,
        )
        return {"Heddle": time.monotonic() - begin_s}

    def dcp(self, target: TargetShards) -> Seconds:
        """Through the disk: saved and fsynced, thrown out of the page cache, loaded."""
        state = {
            f"{name}.{index}": part
            for name, parts in target.shards.items()
            for index, part in enumerate(parts)
        }
        at, begin_s = self.folder / "dcp", time.monotonic()
        if self.rank == SENDER:
            dcp.save(state, storage_writer=dcp.FileSystemWriter(at, sync_files=True), no_dist=True)
        self.meet()
        saved_s = time.monotonic()
        if self.rank == SENDER:
            for path in at.iterdir():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.meet()
        cold_s = time.monotonic()
        if self.rank == RECEIVER:
            dcp.load(state, storage_reader=dcp.FileSystemReader(at), no_dist=True)
        read_s = time.monotonic() - cold_s
        self.meet()
        if self.rank == SENDER:
            shutil.rmtree(at)
        return {"DCP, written and fsynced": saved_s - begin_s, "DCP, read cold": read_s}

    def hand_over(self, blocks: int) -> dict[str, list[float]]:
        """Every way, in turns; the sender's own seconds say nothing."""
        model = model_of(blocks)
        (seat,) = RankMap.of(plan_on(self.rank, blocks)).seats
        target = TargetShards.of(model, seat, HeldState(model), Activity())  # its memory is touched
        held = HeldState(model)
        if self.rank == SENDER:
            held.add_shards(seat, target.shards)
        body = torch.ones(target.bytes_allocated, dtype=torch.uint8)
        ways: tuple[Callable[[], Seconds], ...] = (
            lambda: self.raw(body),
            lambda: self.gloo(body),
            lambda: self.ours(held, target, blocks),
            lambda: self.dcp(target),
        )
        found: dict[str, list[float]] = {}
        for _ in range(TRIES):
            for way in ways:
                self.meet()
                for name, seconds in way().items():
                    found.setdefault(name, []).append(seconds)
        return {"bytes": [target.bytes_allocated], **found}


def main(port: int, rank: int, folder: Path, sizes: list[int]) -> None:
    """All sizes."""
    pair = Pair(port, rank, folder)
    found = [pair.hand_over(blocks) for blocks in sizes]
    pair.meet()
    if rank == RECEIVER:
        print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), [int(n) for n in sys.argv[4:]])
