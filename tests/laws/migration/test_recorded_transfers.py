"""Transfers as they were when all parts of the state had one rule: no message may change since."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import pytest

from benchmarks.migration.changes import PAPER_NODES, change_between, random_change
from migration.transfer import plan_transfer
from tests.builders import MOE, tiled
from tests.laws.migration.changes import MODEL, TIED

DEEP = replace(MODEL, name="deep", layers=12, hidden=32, kv_heads=2, vocab=96)
TILINGS = (
    tiled("2x3", ep=2, etp=1, replicas=2, nodes=("a", "b")),
    tiled("1x1 2x2", replicas=2, nodes=("b", "c")),
    tiled("4x3", ep=1, etp=4, nodes=("a",)),
    tiled("1x3", ep=4, etp=1, replicas=4, nodes=("a", "b", "c", "d")),
)


def dense(model, seed):
    return random_change(random.Random(seed), model, PAPER_NODES, 4, 3)


# {change: (bytes that move, digest of the messages)}
RECORDED = {
    "law-0": (55008, "3a7908cd0de09503"),
    "law-1": (130176, "cee3268ffa2690c1"),
    "law-2": (110784, "3a44dabfbc2c00a9"),
    "law-3": (74496, "35fe990b2566b645"),
    "tied-0": (48864, "67e6dbb40793f27b"),
    "tied-1": (127104, "f7dce6685abe0006"),
    "tied-2": (104640, "be14ca65ce208aa5"),
    "tied-3": (68352, "0848e4806c29c45c"),
    "deep-0": (1534464, "96eb6d37c239e7d3"),
    "deep-1": (2320896, "dd600247930f0d39"),
    "deep-2": (1844352, "72759f44645fbc48"),
    "deep-3": (1244928, "9fc41f55b9e97b55"),
    "moe-0-1": (108768, "7b475c415baba826"),
    "moe-0-2": (47232, "4d5e6dd51058ada0"),
    "moe-0-3": (134208, "0e87ec3b1dc3f2ad"),
    "moe-1-0": (109152, "0462bd0732f406f6"),
    "moe-1-2": (64896, "aebe7268cb33ae10"),
    "moe-1-3": (151296, "c641cdf8bf9c71ed"),
    "moe-2-0": (106368, "8d4d7257c68a01b5"),
    "moe-2-1": (123648, "d9b1a7dfd5716bd5"),
    "moe-2-3": (174240, "830542c76409a0e9"),
    "moe-3-0": (71232, "21ddd2b386955166"),
    "moe-3-1": (87936, "7125012d4f90f483"),
    "moe-3-2": (52128, "e5c9a40328ef464c"),
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
    messages = transfer.classes, transfer.runs, transfer.nodes, transfer.message_bytes
    hasher = hashlib.blake2b(repr(messages).encode(), digest_size=8)
    assert transfer.regions.cuts.whole == {1}
    hasher.update(repr([sorted(cuts) for cuts in transfer.regions.cuts[:3]]).encode())
    assert (transfer.num_bytes, hasher.hexdigest()) == RECORDED[name]
