"""rank/memory_check.py: what a change allocates on a rank is known to the byte before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.plans.pieces import Piece
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, change, plan, pod_of, shards_of, whole_state
from tests.unit.worker.preparing import DIRECTIVE, NEW, InMemory, ended, prepare
from worker.contract import Resume
from worker.control.activity import Activity
from worker.engine.seam import Buffers
from worker.error_kinds import describe_error
from worker.rank.memory_check import group_bytes_of, needed_bytes
from worker.rank.move import plan_move
from worker.state.held_state import HeldState
from worker.state.shards import TargetShards, bytes_to_make
from worker.state.still import StillState

SHAPES = ("1x2", "2x2", "4x2", "1x1+1x1", "2x1+1x1", "1x1+2x1")
seats = st.sampled_from([seat for shape in SHAPES for seat in RankMap.of(plan(shape)).seats])
precisions = st.sampled_from(("fp32", "bf16", "fp16"))


def storages(target):
    """{address: bytes} of all that a rank holds."""
    shards = [part for parts in target.shards.values() for part in parts]
    found = (*shards, *target.buffers.weights.values(), *target.buffers.gradients.values())
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}


@given(seats, seats, precisions)
def test_what_is_made_is_known_to_the_byte(old, new, precision):
    """Of all that the next plan works on, counted by its storages, less what it adopts."""
    before = TargetShards.of(MODEL, old, HeldState(MODEL), Activity(), precision)
    held = HeldState(MODEL)
    held.add_shards(old, before.shards, before.buffers)
    made = bytes_to_make(MODEL, new, held, precision)
    after = storages(TargetShards.of(MODEL, new, held, Activity(), precision))
    assert sum(size for place, size in after.items() if place not in storages(before)) == made


def test_a_rank_whose_shards_stay_and_that_sends_nothing_needs_nothing():
    old = plan("1x2")
    directive = change(old, old)
    move = plan_move(MODEL, directive, pod_of("a"), 0, "gloo")
    shards = shards_of(move.seat, whole_state())
    buffers = Buffers(
        {name: parts[0] for name, parts in shards.items()},
        {name: torch.zeros_like(parts[0]) for name, parts in shards.items()},
    )
    held = HeldState(MODEL)
    held.add_shards(move.seat, shards, buffers)
    assert needed_bytes(MODEL, move, held, "fp32", 0) == 0
    assert needed_bytes(MODEL, move, held, "fp32", 7) == 2 * 7  # of the plan, and of the move


def told(**group_bytes):
    return DIRECTIVE.model_copy(update={"group_bytes": group_bytes})


def needed_over_nccl(directive, modelled_bytes):
    move = plan_move(MODEL, directive, "tiny-a-0", 1, "nccl")
    return needed_bytes(MODEL, move, HeldState(MODEL), "fp32", modelled_bytes)


def test_a_rank_counts_the_bytes_of_a_communicator_by_which_its_plan_left_room():
    kind = RankMap.of(NEW).seats[1].gpu_type
    without = needed_over_nccl(told(), 0)
    modelled, measured, other = (
        needed_over_nccl(of, 7) - without for of in (told(), told(**{kind: 5}), told(other=5))
    )
    assert modelled == other > 0
    assert measured * 7 == modelled * 5


def test_a_rank_that_leaves_counts_the_most_and_one_without_communicators_none():
    leaves = change(plan("1x2"), plan("1x2", first_gpu=1)).model_copy(
        update={"group_bytes": {"a": 5, "b": 9}}
    )
    move = plan_move(MODEL, leaves, pod_of("a"), 0, "nccl")
    assert move.seat is None
    assert (group_bytes_of(move, 7), group_bytes_of(move, 0)) == (9, 0)


def test_the_bytes_that_the_planner_said_decide_whether_a_change_fits():
    services = InMemory()
    services.payload = services.payload._replace(group_bytes=1 << 40)
    assert ended(prepare(services)).error is not None
    services = InMemory()
    services.payload = services.payload._replace(group_bytes=1 << 40)
    kinds = {seat.gpu_type for seat in RankMap.of(NEW).seats}
    assert ended(prepare(services, directive=told(**dict.fromkeys(kinds, 5)))).error is None


def test_a_rank_that_leaves_needs_the_messages_that_it_sends():
    move = plan_move(MODEL, change(plan("1x2"), plan("1x2", first_gpu=1)), pod_of("a"), 0, "gloo")
    assert move.seat is None
    needed = needed_bytes(MODEL, move, HeldState(MODEL), "fp32", 0)
    assert needed == move.transfer.buffer_bytes(move.transport_rank) > move.transfer.num_bytes


def test_a_change_that_does_not_fit_is_refused_before_anything_is_allocated_or_met():
    services = InMemory()
    services.free = 1000
    found = ended(prepare(services))
    assert found.result is None
    assert services.asked == ["prepare"]
    kind, sentence = describe_error(found.error)
    assert kind == "device"
    move = plan_move(MODEL, DIRECTIVE, "tiny-a-0", 1, "gloo")
    needed = needed_bytes(MODEL, move, HeldState(MODEL), "fp32", 0)
    assert needed > 1000
    assert sentence == (
        f"out of memory: the change needs {needed / 1e6:,.0f} MB beside the running plan, "
        "0 MB are free"
    )


def test_one_that_fits_to_the_byte_is_made():
    services = InMemory()
    move = plan_move(MODEL, DIRECTIVE, "tiny-a-0", 1, "gloo")
    services.free = needed_bytes(MODEL, move, HeldState(MODEL), "fp32", 0)
    assert ended(prepare(services)).result is not None


@pytest.mark.parametrize("is_read", [False, True])
def test_what_a_save_under_way_may_still_copy_is_counted(is_read):
    services, still = InMemory(), StillState()
    move = plan_move(MODEL, DIRECTIVE, "tiny-a-0", 1, "gloo")
    services.free = needed_bytes(MODEL, move, HeldState(MODEL), "fp32", 0)
    box = Piece("1.norm1", 0, 16)
    reading = still.read(0, [box], lambda _: (torch.zeros(16),) * 3, 192, lambda: 192)
    if is_read:
        assert reading.stage()
    assert still.staging_bytes == (0 if is_read else 192)
    assert (ended(prepare(services, still=still)).error is None) == is_read


def test_a_recovery_is_tried_however_little_is_free():
    services = InMemory()
    services.free = 0
    resume = Resume(step=7)
    found = ended(prepare(services, directive=DIRECTIVE.model_copy(update={"resume": resume})))
    assert found.error is None
