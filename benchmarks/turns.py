"""Sides that train in turns: a block of steps each, so that other work on the machine meets all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

TURN_S = 600.0  # a side waits for the one before it


def in_turns(
    store: Any,
    side: int,
    place: int,
    ranks: Sequence[int],
    block: Callable[[], None],
    turns: int,
) -> None:
    """Run a block of steps in each turn of this side.

    Args:
        store: of torch, which all processes share.
        side: of this process.
        place: of this process in its side.
        ranks: processes of each side.
        block: of steps.
        turns: of each side.
    """
    for turn in range(len(ranks) * turns):
        if turn % len(ranks) != side:
            continue
        if turn:
            before = ranks[(turn - 1) % len(ranks)]
            keys = [f"turn/{turn - 1}/{other}" for other in range(before)]
            store.wait(keys, timedelta(seconds=TURN_S))
        block()
        store.set(f"turn/{turn}/{place}", "done")
