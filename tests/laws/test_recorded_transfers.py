"""Transfers as they were when all parts of the state had one rule: nothing since may change one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.migration.changes import PAPER_NODES, change_between, random_change
from migration.transfer import plan_transfer
from tests.builders import MOE, tiled
from tests.laws.changes import MODEL, TIED

DEEP = replace(MODEL, name="deep", layers=12, hidden=32, kv_heads=2, vocab=96)
TILINGS = (
    tiled("2x3", ep=2, etp=1, replicas=2, nodes=("a", "b")),
    tiled("1x1 2x2", replicas=2, nodes=("b", "c")),
    tiled("4x3", ep=1, etp=4, nodes=("a",)),
    tiled("1x3", ep=4, etp=1, replicas=4, nodes=("a", "b", "c", "d")),
)


def dense(model, seed):
    return random_change(random.Random(seed), model, PAPER_NODES, 4, 3)


# {change: (bytes that move, digest)}
RECORDED = {
    "law-0": (55008, "4398a460986e444d"),
    "law-1": (130176, "27914b7681c177c5"),
    "law-2": (110784, "0463c7f8170eadef"),
    "law-3": (74496, "618f4e5e92c74721"),
    "tied-0": (48864, "33798f5d2275baaa"),
    "tied-1": (127104, "6d5c14250db9d804"),
    "tied-2": (104640, "7a65e65ff4bcd08b"),
    "tied-3": (68352, "18f82c3aeccfa9fc"),
    "deep-0": (1534464, "05a3279a3123ae81"),
    "deep-1": (2320896, "1a6dcdc43e64e1a8"),
    "deep-2": (1844352, "44b00b3e5b04d0a8"),
    "deep-3": (1244928, "275dd250128f2973"),
    "moe-0-1": (108768, "032c3dec0e14634c"),
    "moe-0-2": (47232, "4a0fbd41ec3b9e4c"),
    "moe-0-3": (134208, "4f23ee82c9a7615f"),
    "moe-1-0": (109152, "41d93bb4e5550d7c"),
    "moe-1-2": (64896, "1ca78ed1c2c7bbc2"),
    "moe-1-3": (151296, "2955670fcda8cc73"),
    "moe-2-0": (106368, "7dd26f85ebe57d93"),
    "moe-2-1": (123648, "73e8f8d9829d64fd"),
    "moe-2-3": (174240, "5a48741b761582b5"),
    "moe-3-0": (71232, "711692c6fa627e70"),
    "moe-3-1": (87936, "68407a1afb409fb6"),
    "moe-3-2": (52128, "1a4b7cc0b2db5833"),
}


def changes():
    """{name: change} of each one that was recorded."""
    found = {
        f"{model.name}-{seed}": dense(model, seed)
        for model in (MODEL, TIED, DEEP)
        for seed in range(4)
    }
    for i, old in enumerate(TILINGS):
        for j, new in enumerate(TILINGS):
            if i != j:
                found[f"moe-{i}-{j}"] = change_between(MOE, old, new)
    return found


CHANGES = changes()


@pytest.mark.parametrize("name", CHANGES)
def test_a_transfer_has_the_digest_that_was_recorded(name):
    change = CHANGES[name]
    transfer = plan_transfer(
        change.held, change.needed, change.node_of, message_bytes=256, grain_bytes=32
    )
    assert (transfer.num_bytes, f"{transfer.digest:016x}") == RECORDED[name]
