"""One iteration played out event by event, as the runtime runs it in the 1F1B order.

Think of a clock: stage s runs the forward pass of micro-batch m at tick 2m + s and its backward
pass at tick 2m + 2D - 1 - s.  Before a forward tick it first gives its last gradient back, then
takes an activation; before a backward tick it takes a gradient, then gives its last activation on.
Neighbours do the opposite at the same tick, so every send meets its receive and nobody waits in a
circle.  Only the order is the clock's: a message keeps both ends busy from the moment both are
there, for the link's seconds, and no stage waits for anything else.
Invariant: where backward >= forward this stays at or below the formula of `planner.cost.evaluate`,
whose seconds it plays; what the runtime measures is compared with this.
Source: PipeDream-Flush; the order is that of DeepSpeed's `TrainSchedule`, which a test compares.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from planner.cost.evaluate import PlanCost, ReplicaCost

Operation = Literal[
    "receive_activation",
    "send_activation",
    "receive_gradient",
    "send_gradient",
    "forward",
    "backward",
]


class Event(NamedTuple):
    """Work of one stage on one micro-batch from `start_s` to `end_s`."""

    stage: int
    operation: Operation
    micro_batch: int
    start_s: float
    end_s: float


def simulate_replica(replica: ReplicaCost) -> Iterator[Event]:
    """Play the micro-batches of one replica; the events of each stage come in their order.

    In lock-step empty ones are played too, and a pass lasts as long as on the slowest replica.
    """
    yield from _play(replica, [0.0] * len(replica.stages), 0, _ticks(replica))


def _ticks(replica: ReplicaCost) -> int:
    return 2 * (replica.rounds + len(replica.stages) - 1) + 1


def _play(replica: ReplicaCost, clock: list[float], begin: int, end: int) -> Iterator[Event]:
    """Play the ticks from `begin` to before `end`; `clock` holds the seconds of each stage."""
    stages, count = replica.paced, replica.rounds
    depth = len(stages)
    for tick in range(begin, end):
        for s in range(tick % 2, depth, 2):  # stages whose turn it is to go forward
            back, ahead = (tick + s) // 2 - depth, (tick - s) // 2
            if s and 0 <= back < count:
                start_s, end_s = _meet(clock, s, stages[s - 1].to_next_s)
                yield Event(s, "send_gradient", back, start_s, end_s)
                yield Event(s - 1, "receive_gradient", back, start_s, end_s)
            if s and 0 <= ahead < count:
                start_s, end_s = _meet(clock, s, stages[s - 1].to_next_s)
                yield Event(s, "receive_activation", ahead, start_s, end_s)
                yield Event(s - 1, "send_activation", ahead, start_s, end_s)
            if 0 <= ahead < count:
                start_s, clock[s] = clock[s], clock[s] + stages[s].forward_s
                yield Event(s, "forward", ahead, start_s, clock[s])
        for s in range(1 - tick % 2, depth, 2):
            back = (tick + s + 1) // 2 - depth
            if 0 <= back < count:
                start_s, clock[s] = clock[s], clock[s] + stages[s].backward_s
                yield Event(s, "backward", back, start_s, clock[s])


def _meet(clock: list[float], s: int, seconds: float) -> tuple[float, float]:
    """When a message between a stage and the one before it begins and ends."""
    start_s = max(clock[s - 1 : s + 1])
    clock[s - 1] = clock[s] = start_s + seconds
    return start_s, clock[s]


def simulated_seconds(priced: PlanCost) -> float:
    """The slowest replica, then gradient synchronisation, optimizer step and broadcasts."""
    last_s = max(replica_seconds(replica) for replica, _ in priced.distinct)
    return last_s + priced.sync_s + priced.optimizer_s + priced.broadcast_s


def replica_seconds(replica: ReplicaCost) -> float:
    """The end of a replica's last event.

    Between the filling and the draining of the pipeline all rounds of two ticks are alike.  Each
    is one linear map of the stages' clocks, in the algebra of maximum and sum; its power by
    squaring plays a million of them at once.
    """
    depth, count = len(replica.stages), replica.rounds
    clock = [0.0] * depth
    steady, drained = 2 * depth, 2 * count
    if drained <= 2 * steady:
        return float(_clock_after(replica, clock, 0, _ticks(replica)).max())
    at_s = _clock_after(replica, clock, 0, steady)
    columns = []
    for s in range(depth):
        only = [-math.inf] * depth
        only[s] = 0.0
        columns.append(_clock_after(replica, only, steady, steady + 2))
    power, left = np.stack(columns, axis=1), count - depth
    while left:
        if left % 2:
            at_s = (power + at_s).max(axis=1)
        power = np.stack([(row[:, None] + power).max(axis=0) for row in power])
        left //= 2
    return float(_clock_after(replica, at_s.tolist(), drained, _ticks(replica)).max())


def _clock_after(replica: ReplicaCost, clock: list[float], begin: int, end: int) -> np.ndarray:
    deque(_play(replica, clock, begin, end), maxlen=0)
    return np.array(clock)
