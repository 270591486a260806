"""worker/rank/memory.py: what an error says where memory has ended."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from planner.cost.memory import RULES, slot_of, slot_parameters, stepped_parameters
from planner.model.tensors import held_tensors
from planner.model.workload import Workload
from planner.plans.pieces import shard
from planner.plans.ranks import RankMap
from tests.distributed.random_plans import tiled_plan
from tests.families import MIXTURES
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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", MIXTURES.values(), ids=lambda model: model.name)
def test_so_it_is_of_experts_under_any_tiling_and_by_the_memory_rule(model, precision):
    choose, workload = random.Random(3), Workload(model=model, global_batch=8, sequence_length=16)
    rule, seen, cut = RULES["worker"][precision], 0, 0
    for index in range(30):
        tiled = tiled_plan(choose, 4, model, 8).with_zero(index % 2)
        for seat in RankMap.of(tiled).seats:
            target = TargetShards.of(model, seat, HeldState(model), Activity(), precision)
            held = sum(one.numel() for one in target.buffers.gradients.values())
            own = sum(parts[0].numel() for parts in target.shards.values())
            planned = planned_state_bytes(model, seat, precision)
            assert planned == held * (rule.weight + rule.gradient) + own * rule.optimizer
            template = seat.pipeline.template
            slot = slot_of(template, seat.stage, seat.pipeline.num_micro_batches)
            layers = template.stages[seat.stage].layers
            assert sum(slot_parameters(workload.model, slot, layers)) == held
            stepped = stepped_parameters(replace(workload, zero=index % 2), slot, layers)
            assert abs(own - stepped) <= rounding(model, seat, target)
            assert own == held or tiled.zero
            seen += template.stages[seat.stage].is_tiled
            cut += own < held
    assert seen > 20
    assert cut > 10


def rounding(model, seat, target):
    """Parameters by which what a rank owns may differ from an equal share: a row of each tensor.

    What is counted is owned by all.
    """
    found = 0
    for tensor in held_tensors(model, seat.layers) if seat.pipeline.template.zero else ():
        numbers, box = target.buffers.gradients[tensor.name].numel(), shard(tensor, seat)
        found += numbers if tensor.is_counted else numbers // (box.stop - box.start)
    return found


def test_the_note_names_stage_planned_and_held_bytes():
    error, seat = MemoryError(), RankMap.of(plan("2x1+1x1")).seats[1]
    note_memory(error, MODEL, seat, "fp32", 3, CPU)
    (note,) = error.__notes__
    planned = f"{planned_state_bytes(MODEL, seat, 'fp32'):,}"
    assert note.startswith("stage 1 of 2 of epoch 3 (TP degree 2)")
    assert planned in note
    assert re.search(r"the process has held up to [\d,]{9,} bytes$", note)


def test_an_error_of_another_kind_has_no_note_on_memory():
    error, seat = ConnectionError("a peer is gone"), RankMap.of(plan("2x1+1x1")).seats[1]
    note_memory(error, MODEL, seat, "fp32", 3, CPU)
    assert not getattr(error, "__notes__", ())
