"""How long a replica takes in the 1F1B order, without the timeline.

At a tick of the clock of `planner.cost.schedule`, a stage whose turn it is to go forward first
gives its last gradient to the stage before it and then takes an activation from there; that stage
then goes backward.  So pairs of neighbours can be dealt with tick by tick.
Invariant: equal to `planner.cost.simulation.simulate_replica`, which a test compares.
"""

from __future__ import annotations

from collections.abc import Sequence


def replica_seconds(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    to_next_s: Sequence[float],
    micro_batches: int,
) -> float:
    """When the last stage of a replica has finished.

    Args:
        forward_s: [D] forward pass of one micro-batch.
        backward_s: [D] backward pass.
        to_next_s: [D] one message to or from the next stage.
        micro_batches: M.
    """
    depth = len(forward_s)
    clock = [0.0] * depth
    for tick in range(2 * (micro_batches + depth - 1) + 1):
        for s in range(tick % 2, depth, 2):
            if s > 0:
                done = tick - 1 - (2 * depth - 1 - s)  # backward of this micro-batch a tick ago
                came = tick - 1 - (s - 1)  # forward of that one, a tick ago, in the stage before
                for start in (done, came):
                    if start >= 0 and start % 2 == 0 and start // 2 < micro_batches:
                        met = max(clock[s - 1], clock[s]) + to_next_s[s - 1]
                        clock[s - 1] = met
                        clock[s] = met
            ahead = tick - s
            if 0 <= ahead < 2 * micro_batches:
                clock[s] += forward_s[s]
        for s in range(1 - tick % 2, depth, 2):
            back = tick - (2 * depth - 1 - s)
            if 0 <= back < 2 * micro_batches:
                clock[s] += backward_s[s]
    return max(clock)
