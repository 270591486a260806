"""The 1F1B order in which a stage works through its micro-batches, as pure data.

Think of a clock: stage s runs the forward pass of micro-batch m at tick 2m + s and its backward
pass at tick 2m + 2D - 1 - s.  At each tick it first deals with its neighbours: before a forward
tick it gives the last gradient back, then takes an activation; before a backward tick it takes a
gradient, then gives the last activation on.  Neighbours do the opposite at the same tick, so every
send meets its receive and nobody waits in a circle.  Only the order is used: no stage waits for
the clock.
Source: PipeDream-Flush; the order is that of DeepSpeed's `TrainSchedule`, which a test compares.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Operation = Literal[
    "receive_activation",
    "send_activation",
    "receive_gradient",
    "send_gradient",
    "forward",
    "backward",
]


class Instruction(NamedTuple):
    """One thing that a stage does with one micro-batch."""

    operation: Operation
    micro_batch: int


def stage_instructions(micro_batches: int, depth: int, stage: int) -> tuple[Instruction, ...]:
    """Everything that a stage does in one iteration before the gradients are summed.

    Args:
        micro_batches: M of the replica.
        depth: D of its template.
        stage: s, 0..D-1.
    """
    is_first, is_last = stage == 0, stage == depth - 1
    forward_at = {2 * m + stage: m for m in range(micro_batches)}
    backward_at = {2 * m + 2 * depth - 1 - stage: m for m in range(micro_batches)}
    order: list[Instruction] = []
    for tick in range(2 * (micro_batches + depth - 1)):
        if not is_first and tick - 1 in backward_at:
            order.append(Instruction("send_gradient", backward_at[tick - 1]))
        if tick in forward_at:
            if not is_first:
                order.append(Instruction("receive_activation", forward_at[tick]))
            order.append(Instruction("forward", forward_at[tick]))
        if not is_last and tick in backward_at:
            order.append(Instruction("receive_gradient", backward_at[tick]))
        if not is_last and tick - 1 in forward_at:
            order.append(Instruction("send_activation", forward_at[tick - 1]))
        if tick in backward_at:
            order.append(Instruction("backward", backward_at[tick]))
    return tuple(order)
