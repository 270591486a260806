"""Events of the demo: its first nodes, and each join and leave with its time."""

from __future__ import annotations

from heddle.train.script import Event
from planner.cluster.composition import Composition, Node

# The node that was refused would pay once others are gone; the script ends before that.
COOLDOWN_S = 600.0
NODES = Composition((Node("fast-1", "demo-fast", 1), Node("fast-2", "demo-fast", 1)))
SCRIPT: tuple[Event, ...] = (
    Event(20, "join", "fast-3", Node("fast-3", "demo-fast", 3)),
    Event(55, "join", "slow-1", Node("slow-1", "demo-slow", 1)),
    Event(80, "drain", "fast-1"),
    Event(135, "kill", "fast-2"),
)
JOINERS = (
    Node("fast-new", "demo-fast", 1),
    Node("fast-new", "demo-fast", 2),
    Node("slow-new", "demo-slow", 1),
)
