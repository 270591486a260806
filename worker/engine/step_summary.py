"""Messages of the ranks of a plan to each other once a step, in the slots of one sum over all.

Invariant: every rank reads the same from the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.engine.step_clock import PARTS

SHARED = 3 + len(PARTS)  # slots that are sums: loss, ready epoch, its square, seconds by part


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's part.

    Attributes:
        loss: its share of the loss of the global batch.
        ready_epoch: that it is ready to switch to, SUSPEND, SAVE, or 0.
        arrival: when its emulated device had all gradients.
        parts_s: seconds of each part of the step, in the order of PARTS.
        memory_bytes: the most that it has held.
    """

    loss: float
    ready_epoch: int
    arrival: float
    parts_s: tuple[float, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Knowledge of all ranks afterwards.

    Attributes:
        loss: of the global batch.
        agreed_epoch: that all are ready for; None if they differ.
        last_arrival_s: of the slowest.
        parts_s: the mean over the ranks.
        memory_bytes: the most that any has held.
    """

    loss: float
    agreed_epoch: int | None
    last_arrival_s: float
    parts_s: tuple[float, ...]
    memory_bytes: int


def encode(summary: RankSummary, rank: int, size: int) -> torch.Tensor:
    """One rank's slots, `SHARED + 2 size` of fp64: sums, then two for each rank's own numbers."""
    ready = float(summary.ready_epoch)
    slots = torch.zeros(SHARED + 2 * size, dtype=torch.float64)
    slots[:SHARED] = torch.tensor(
        [summary.loss, ready, ready * ready, *summary.parts_s], dtype=torch.float64
    )
    slots[SHARED + rank] = summary.arrival
    slots[SHARED + size + rank] = summary.memory_bytes
    return slots


def decode(slots: torch.Tensor, size: int) -> StepSummary:
    """Meaning of the summed slots.

    All ranks are ready for the same epoch e exactly when size x sum of squares == (sum)^2 and the
    sum is not 0; SUSPEND and SAVE count as epochs.
    """
    loss, total, squares, *rest = slots.tolist()
    parts, own = rest[: len(PARTS)], rest[len(PARTS) :]
    agreed = size * squares == total * total and total != 0
    return StepSummary(
        loss,
        round(total / size) if agreed else None,
        max(own[:size]),
        tuple(seconds / size for seconds in parts),
        round(max(own[size:])),
    )
