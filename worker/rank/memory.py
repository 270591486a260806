"""Report where memory ends: the stage, the plan's count for it, the memory held.

Pure but for asking the system what this process has held.
"""

from __future__ import annotations

import math

from planner.cost.memory import RULES
from planner.model.shape import ModelShape
from planner.model.tensors import held_tensors
from planner.plans.pieces import owned, shard
from planner.plans.ranks import Seat
from worker.device.device import Device
from worker.error_kinds import is_out_of_memory
from worker.model.boxes import box_shape
from worker.training_settings import Precision


def planned_state_bytes(model: ModelShape, seat: Seat, precision: Precision) -> int:
    """Bytes of weights and gradients of what a seat holds, and of the optimizer of what it owns."""
    rule, held, own = RULES["worker"][precision], 0, 0
    for tensor in held_tensors(model, seat.layers):
        held += math.prod(box_shape(tensor, shard(tensor, seat)))
        own += math.prod(box_shape(tensor, owned(tensor, seat)))
    return held * (rule.weight + rule.gradient) + own * rule.optimizer


def note_memory(
    error: BaseException,
    model: ModelShape,
    seat: Seat,
    precision: Precision,
    epoch: int,
    device: Device,
) -> None:
    """Note on an error of memory where it ended, which `describe_error` then says."""
    if not is_out_of_memory(error):
        return
    planned, stages = planned_state_bytes(model, seat, precision), seat.pipeline.template.stages
    error.add_note(
        f"stage {seat.stage + 1} of {len(stages)} of epoch {epoch} (TP degree {seat.tp}); the plan "
        f"counts {planned:,} bytes for weights, gradients and optimizer, without activations and "
        f"buffers; the process has held up to {device.held_bytes():,} bytes"
    )
