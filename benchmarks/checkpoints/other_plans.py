"""Bytes that each rank reads when another plan loads a checkpoint; the vault is in memory."""

from __future__ import annotations

from typing import NamedTuple

from planner.model.experts import Experts
from planner.model.shape import ModelShape
from planner.model.tensors import held_tensors
from planner.plans.pieces import shard
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from planner.plans.state_rule import PARTS, element_bytes
from tests.builders import tiled
from tests.checkpoints import save, state
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import numel
from worker.checkpoint.load import Checkpoint, Newest, newest

DENSE = ModelShape(name="dense", layers=4, hidden=512, heads=8, kv_heads=8, ffn=1408, vocab=4096)
ROUTED = ModelShape(
    name="routed",
    layers=4,
    hidden=256,
    heads=8,
    kv_heads=8,
    ffn=704,
    vocab=4096,
    experts=Experts(count=8, per_token=2, ffn=352, shared=1),
)


class Case(NamedTuple):
    """A plan that saves, and one that loads."""

    name: str
    model: ModelShape
    saver: Plan
    loader: Plan


CASES = (
    Case("TP 1 to 2", DENSE, tiled("1x4"), tiled("2x4")),
    Case("TP 1 to 4", DENSE, tiled("1x4"), tiled("4x4")),
    Case("TP 1 to 8", DENSE, tiled("1x4"), tiled("8x4")),
    Case("TP 8 to 1", DENSE, tiled("8x4"), tiled("1x4")),
    Case("4 stages to TP 4", DENSE, tiled("1x1 1x1 1x1 1x1"), tiled("4x4")),
    Case(
        "EP 4 to EP 1 x ETP 2",
        ROUTED,
        tiled("1x4", ep=4, etp=1, replicas=4),
        tiled("1x4", ep=1, etp=2, replicas=2),
    ),
    Case(
        "EP 1 x ETP 2 to EP 4",
        ROUTED,
        tiled("1x4", ep=1, etp=2, replicas=2),
        tiled("1x4", ep=4, etp=1, replicas=4),
    ),
)


def shares(case: Case) -> list[float]:
    """Bytes read over bytes held, of each rank."""
    vault = MemoryVault()
    save(vault, Attempt(epoch=1, step=1), case.saver, state(case.model, 1))
    found = newest(vault)
    assert isinstance(found, Newest)
    return [
        _share(Checkpoint(vault, found.attempt, found.manifest, case.model), case.model, seat)
        for seat in RankMap.of(case.loader).seats
    ]


def _share(checkpoint: Checkpoint, model: ModelShape, seat) -> float:
    held_bytes = 0
    for tensor in held_tensors(model, seat.layers):
        box = shard(tensor, seat)
        checkpoint.read(box)
        held_bytes += element_bytes(PARTS) * numel(tensor, box)
    return checkpoint.bytes_read / held_bytes
