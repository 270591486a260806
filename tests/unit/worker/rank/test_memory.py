"""worker/rank/memory.py: what an error says where memory has ended."""

from __future__ import annotations

import re

import pytest

from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, plan
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.rank.memory import note_memory, planned_state_bytes
from worker.state.held_state import HeldState
from worker.state.shards import TargetShards


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("seat", RankMap.of(plan("2x1+1x1")).seats, ids=lambda seat: seat.rank)
def test_the_plan_counts_what_is_allocated(seat, precision):
    target = TargetShards.of(MODEL, seat, HeldState(MODEL), Activity(), precision)
    held = {
        tensor.data_ptr(): tensor.nbytes
        for tensor in (
            *(part for parts in target.shards.values() for part in parts),
            *target.buffers.weights.values(),
            *target.buffers.gradients.values(),
        )
    }
    assert planned_state_bytes(MODEL, seat, precision) == sum(held.values())


def test_the_note_names_stage_planned_and_held_bytes():
    error, seat = MemoryError(), RankMap.of(plan("2x1+1x1")).seats[1]
    note_memory(error, MODEL, seat, "fp32", 3, CPU)
    (note,) = error.__notes__
    planned = f"{planned_state_bytes(MODEL, seat, 'fp32'):,}"
    assert note.startswith("stage 1 of 2 of epoch 3 (TP degree 2)")
    assert planned in note
    assert re.search(r"the process has held up to [\d,]{9,} bytes$", note)
