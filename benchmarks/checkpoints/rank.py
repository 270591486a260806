"""One of two ranks that save and load their state by Heddle and by torch, by turns, on one disk.

    python -m benchmarks.checkpoints.rank PORT RANK FOLDER BLOCKS TRIES

Rank 0 prints, as JSON, the seconds of every try of each way, until both ranks are done, and the
bytes that its loads took from the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from planner.model.shape import ModelShape
from planner.model.tensors import held_tensors
from planner.plans.pieces import Piece, shard
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import written
from worker.checkpoint.load import Checkpoint, Newest, newest
from worker.checkpoint.manifest import SavedStep, digest_of
from worker.checkpoint.save import commit, save_part
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.control.activity import Activity
from worker.state.held_state import HeldState, find_tensor
from worker.state.shards import TargetShards
from worker.weights.files import bytes_of

RANKS = 2
BUFFER_BYTES = 1_000_000  # of the plain reading, which no larger one makes faster


def model_of(blocks: int) -> ModelShape:
    """A block of it, with its moments, has 154 MB."""
    return ModelShape(
        name="bench", layers=blocks, hidden=1024, heads=16, kv_heads=16, ffn=2816, vocab=4096
    )


def plan_of(blocks: int, samples: int = 1) -> Plan:
    """TP 2 on one node: each rank holds half of all; a step has one micro-batch."""
    template = FilledTemplate((Stage(gpu_type="a", tp=RANKS, layers=blocks),), samples, (1,))
    return Plan((template,), (PlacedStage(0, 0, 0, "n", tuple(range(RANKS))),))


class Rank:
    """This process: its state in memory, and the folders of both ways."""

    def __init__(self, port: int, rank: int, folder: Path, blocks: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
        )
        self.rank, self.model = rank, model_of(blocks)
        self.ours, self.theirs = folder / "heddle", folder / "dcp"
        self.attempt = Attempt(epoch=1, step=1)
        plan = plan_of(blocks)
        self.pieces = written(self.model, plan)[rank]
        self.seat = RankMap.of(plan).seats[rank]
        self.held, self.shards = self._state(seed=1 + rank)
        self.target = self._state(seed=0)[1]  # its memory is touched, as a start's is
        self.num_bytes = self.shards.bytes_allocated

    def _state(self, seed: int) -> tuple[HeldState, TargetShards]:
        torch.manual_seed(seed)
        shards = TargetShards.of(self.model, self.seat, HeldState(self.model), Activity())
        for tensor in held_tensors(self.model, self.seat.layers):
            whole = tensor.dim is None  # both ranks hold it, so it has the same numbers
            for part in shards.shards[tensor.name]:
                part.fill_(1) if whole else part.normal_()
        held = HeldState(self.model)
        held.add_shards(self.seat, shards.shards)
        return held, shards

    # -- the ways; each is timed until both ranks are done

    def heddle_saves(self) -> None:
        """Both phases; the commit comes when both parts are there."""
        vault = FolderVault(self.ours)
        save_part(vault, self.attempt, self.rank, self.model, self.pieces, self.held.chunks)
        dist.barrier()
        if self.rank == 0:
            state = blank_state(self.attempt.step)
            assert commit(vault, self.attempt, RANKS, self.model, state, "") is not None

    def torch_saves(self) -> None:
        """Files and folder are brought to the disk, as ours are."""
        dcp.save(
            self._named(self.shards),
            storage_writer=dcp.FileSystemWriter(self.theirs, sync_files=True),
        )

    def heddle_loads(self) -> None:
        """Every box that this rank holds; each block is checked."""
        vault = FolderVault(self.ours)
        found = newest(vault)
        assert isinstance(found, Newest)
        checkpoint = Checkpoint(vault, found.attempt, found.manifest, self.model)
        for box, parts in self._boxes():
            checkpoint.fill(box, parts)

    def torch_loads(self) -> None:
        """Into tensors that are there."""
        dcp.load(self._named(self.target), storage_reader=dcp.FileSystemReader(self.theirs))

    def reads(self) -> None:
        """The bytes of this rank's files, into one buffer that is used again."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        for path in sorted((self.ours / str(self.attempt)).glob(f"rank-{self.rank}-*")):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    def digests(self) -> None:
        """Those of all blocks, from memory."""
        for _, parts in self._boxes():
            for part in parts:
                digest_of(bytes_of(part))

    def _boxes(self) -> Iterator[tuple[Piece, tuple[torch.Tensor, ...]]]:
        for tensor in held_tensors(self.model, self.seat.layers):
            yield shard(tensor, self.seat), self.target.shards[tensor.name]

    def _named(self, shards: TargetShards) -> dict[str, torch.Tensor]:
        """Tensors of both ranks by names of their own; what both hold is rank 0's to write."""
        return {
            f"{'all' if find_tensor(self.model, name).dim is None else self.rank}.{name}.{i}": part
            for name, parts in shards.shards.items()
            for i, part in enumerate(parts)
        }

    # -- turns

    def timed(self, way: Callable[[], None]) -> float:
        """Seconds from both ranks' beginning to both ranks' end."""
        dist.barrier()
        begin_s = time.monotonic()
        way()
        dist.barrier()
        return time.monotonic() - begin_s

    def turn(self, number: int) -> dict[str, float]:
        """Every way once; the sides change places from turn to turn."""
        if self.rank == 0:
            for folder in (self.ours, self.theirs):
                shutil.rmtree(folder, ignore_errors=True)
        saves = {"Heddle saves": self.heddle_saves, "DCP saves": self.torch_saves}
        loads = {
            "Heddle loads": self.heddle_loads,
            "DCP loads": self.torch_loads,
            "reading": self.reads,
        }
        found = {}
        for ways in (saves, loads):
            first = number % len(ways)
            names = list(ways)
            for name in (*names[first:], *names[:first]):
                self._forget()
                before = bytes_from_disk()
                found[name] = self.timed(ways[name])
                if name in loads:
                    found[f"{name}: bytes from the disk"] = bytes_from_disk() - before
                if name in ("Heddle loads", "DCP loads"):
                    self._compare(name)
        found["digests"] = self.timed(self.digests)
        return found

    def _compare(self, name: str) -> None:
        """What was loaded is what was saved; then it is forgotten."""
        for key, parts in self.target.shards.items():
            assert all(map(torch.equal, parts, self.shards.shards[key])), f"{name}: {key}"
            for part in parts:
                part.zero_()

    def _forget(self) -> None:
        """Take all files out of the page cache."""
        dist.barrier()
        if self.rank == 0:
            os.sync()
            for folder in (self.ours, self.theirs):
                for path in folder.rglob("*"):
                    if path.is_file():
                        with path.open("rb") as file:
                            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        dist.barrier()


def blank_state(step: int) -> SavedStep:
    """The state of a step without anything that training would know."""
    return SavedStep(
        step=step, updates=1, loss_scale=1, good_steps=0, training={}, shape={}, plan_digest=""
    )


def bytes_from_disk() -> int:
    """Bytes that this process has had read so far, those of the page cache apart."""
    fields = Path("/proc/self/io").read_text().split()
    return int(fields[fields.index("read_bytes:") + 1])


def main(port: int, rank: int, folder: Path, blocks: int, tries: int) -> None:
    """All turns."""
    me = Rank(port, rank, folder, blocks)
    turns = [me.turn(number) for number in range(tries + 1)][1:]  # the first touches memory
    found = {way: [turn[way] for turn in turns] for way in turns[0]}
    if rank == 0:
        print(json.dumps({"bytes": me.num_bytes, **found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        rank=int(sys.argv[2]),
        folder=Path(sys.argv[3]),
        blocks=int(sys.argv[4]),
        tries=int(sys.argv[5]),
    )
