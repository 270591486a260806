"""Keys that change the nodes of a run: a add, d drain, k kill, q quit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from heddle.train.script import Event
from heddle_operator.state.snapshot import ObservedNode
from planner.cluster.composition import Node

LEGEND = "a: add a node   d: drain one   k: kill one   q: quit"


def event_for(
    key: str, step: int, nodes: Mapping[str, ObservedNode], joiners: Sequence[Node], added: int
) -> Event | None:
    """Effect of a key on the nodes; None if it has none.

    Drain takes the first node that stays, kill the last: the two ends of the grid.

    Args:
        key: that was pressed.
        step: completed steps.
        nodes: that are there.
        joiners: what is added in turn; their names get a number.
        added: how many were added before.
    """
    staying = [name for name in sorted(nodes) if nodes[name].leaving_at_s is None]
    if key == "a":
        like = joiners[added % len(joiners)]
        node = replace(like, name=f"{like.name}-{added + 1}")
        return Event(step, "join", node.name, node)
    if key == "d" and len(staying) > 1:
        return Event(step, "drain", staying[0])
    if key == "k" and len(staying) > 1:
        return Event(step, "kill", staying[-1])
    return None


@contextlib.contextmanager
def keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Call `on_key` for each key that is pressed, without waiting for Enter."""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()
    tty.setcbreak(number)
    loop.add_reader(number, _pass_on, number, on_key)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _pass_on(number: int, on_key: Callable[[str], None]) -> None:
    for key in os.read(number, 64).decode(errors="ignore"):
        on_key(key)
