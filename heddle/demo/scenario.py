"""Events of the demo: its first nodes, and each join and leave with its time."""

from __future__ import annotations

from heddle.train.script import Event
from planner.cluster.composition import Composition, Node

# The slow node does not pay for this model.  It would once others are gone; the script ends before.
COOLDOWNS_S = {"tiny-llama": 600.0}
NODES = Composition(
    (
        Node(name="fast-1", gpu_type="demo-fast", gpus=1),
        Node(name="fast-2", gpu_type="demo-fast", gpus=1),
    )
)
SCRIPT: tuple[Event, ...] = (
    Event(20, "join", "fast-3", Node(name="fast-3", gpu_type="demo-fast", gpus=3)),
    Event(55, "join", "slow-1", Node(name="slow-1", gpu_type="demo-slow", gpus=1)),
    Event(80, "drain", "fast-1"),
    Event(135, "kill", "fast-2"),
)
JOINERS = (
    Node(name="fast-new", gpu_type="demo-fast", gpus=1),
    Node(name="fast-new", gpu_type="demo-fast", gpus=2),
    Node(name="slow-new", gpu_type="demo-slow", gpus=1),
)
