"""state/shards.py: what keeps its cut is adopted as it is; the rest is room, ready to be filled."""

from __future__ import annotations

import ctypes
import mmap
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.model.arithmetic import INITIAL_DEVIATION
from planner.model.shape import ModelShape
from planner.plans.pieces import Piece, shard
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, plan, shards_of, whole_state
from worker.checkpoint.start_source import FirstWeights
from worker.control.activity import Activity
from worker.model.initial_weights import initial_rows
from worker.rank.memory import planned_state_bytes
from worker.state.held_state import HeldState, find_tensor
from worker.state.shards import TargetShards, bytes_to_make

SHAPES = ("1x2", "2x2", "4x2", "1x1+1x1", "2x1+1x1", "1x1+2x1")
seats = st.sampled_from([seat for shape in SHAPES for seat in RankMap.of(plan(shape)).seats])


def held_at(seat, shards, model=MODEL):
    held = HeldState(model)
    held.add_shards(seat, shards)
    return held


@given(seats, seats)
def test_exactly_the_shards_of_the_same_cut_are_adopted_and_the_others_are_allocated(old, new):
    shards = shards_of(old, whole_state())
    target = TargetShards.of(MODEL, new, held_at(old, shards), Activity())
    allocated = 0
    for name, parts in target.shards.items():
        tensor = find_tensor(MODEL, name)
        stays = name in shards and shard(tensor, old) == shard(tensor, new)
        assert (name in target.adopted) == stays
        if stays:
            assert all(part is live for part, live in zip(parts, shards[name], strict=True))
        else:
            allocated += sum(part.nbytes for part in parts)
            all_parts = (*parts, *shards.get(name, ()))
            assert len({part.data_ptr() for part in all_parts}) == len(all_parts)
    assert target.bytes_allocated == allocated
    wanted = shards_of(new, whole_state())
    assert {name: [part.shape for part in parts] for name, parts in target.shards.items()} == {
        name: [part.shape for part in parts] for name, parts in wanted.items()
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("counts", [(1, 1, 1), (1,)])
def test_with_zero_a_rank_allocates_the_bytes_that_the_planner_counts(precision, counts):
    """To the byte, and what a change makes is known before."""
    stages = (Stage(gpu_type="a", tp=2, layers=2),)
    spots = tuple(PlacedStage(0, r, 0, "a", (2 * r, 2 * r + 1)) for r in range(len(counts)))
    owning = Plan((FilledTemplate(stages, 1, counts, 1),), spots)
    for seat in RankMap.of(owning).seats:
        target = TargetShards.of(MODEL, seat, HeldState(MODEL), Activity(), precision)
        buffers = target.buffers
        tensors = [part for parts in target.shards.values() for part in parts]
        tensors += [*buffers.weights.values(), *buffers.gradients.values()]
        sizes = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
        made = sum(storage.nbytes() for at, storage in sizes.items() if at)
        assert made == planned_state_bytes(MODEL, seat, precision)
        assert made == bytes_to_make(MODEL, seat, HeldState(MODEL), precision)
        held = HeldState(MODEL)
        held.add_shards(seat, target.shards, target.buffers)
        again = TargetShards.of(MODEL, seat, held, Activity(), precision)
        assert bytes_to_make(MODEL, seat, held, precision) == again.bytes_allocated == 0
        assert all(again.buffers.weights[name] is one for name, one in buffers.weights.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_arrives_of_other_rows_is_written_to_no_memory_that_the_old_plan_trains_on(precision):
    """Weights stay where they are unless rows that this rank owns now are to arrive in them."""
    stages, spots = (Stage(gpu_type="a", tp=1, layers=2),), []
    seats = []
    for counts in ((1, 1), (1, 1, 1)):
        spots = tuple(PlacedStage(0, r, 0, "a", (r,)) for r in range(len(counts)))
        seats.append(RankMap.of(Plan((FilledTemplate(stages, 1, counts, 1),), spots)).seats[1])
    old = TargetShards.of(MODEL, seats[0], HeldState(MODEL), Activity(), precision)
    held = HeldState(MODEL)
    held.add_shards(seats[0], old.shards, old.buffers)
    new = TargetShards.of(MODEL, seats[1], held, Activity(), precision)
    live = {part.untyped_storage().data_ptr() for parts in old.shards.values() for part in parts}
    for name, parts in new.shards.items():
        assert name not in new.adopted
        assert not live & {part.untyped_storage().data_ptr() for part in parts}
    assert new.stale == (set() if precision == "fp32" else set(new.shards))


def test_no_number_of_the_state_is_read():
    """Tensors of the device `meta` have none: to copy from one is an error."""
    old, new = (RankMap.of(plan(shape)).seats[0] for shape in ("1x2", "2x1+1x1"))
    shards = {
        name: tuple(part.to("meta") for part in parts)
        for name, parts in shards_of(old, whole_state()).items()
    }
    target = TargetShards.of(MODEL, new, held_at(old, shards), Activity())
    assert 0 < len(target.adopted) < len(target.shards)
    for name, parts in target.shards.items():
        assert {part.is_meta for part in parts} == {name in target.adopted}


def test_the_memory_of_what_is_allocated_has_been_touched():
    """So large that the allocator maps fresh pages, none of which exists before its first use."""
    model = ModelShape(name="wide", layers=1, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=600_000)
    seat = RankMap.of(plan("1x0+1x1")).seats[0]
    target = TargetShards.of(model, seat, HeldState(model), Activity())
    for part in target.shards["0.weight"]:
        assert resident(part) == 1.0
    assert resident(torch.empty(600_000, 16)) < 1.0  # the measure can tell


def resident(tensor):
    """The share of a tensor's whole pages that are in memory."""
    page = mmap.PAGESIZE
    start = -(-tensor.data_ptr() // page) * page
    pages = (tensor.data_ptr() + tensor.nbytes - start) // page
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * page), found) == 0
    return sum(flags & 1 for flags in found) / pages


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_state_is_the_initial_weights_whatever_the_cut(shape):
    for seat in RankMap.of(plan(shape)).seats:
        target = TargetShards.first(
            MODEL, seat, FirstWeights(partial(initial_rows, 3, INITIAL_DEVIATION)).fill, Activity()
        )
        for name, (weight, *moments) in target.shards.items():
            tensor = find_tensor(MODEL, name)
            box, whole = (
                shard(tensor, seat),
                initial_rows(3, INITIAL_DEVIATION, tensor, 0, tensor.rows),
            )
            rows = whole.narrow(tensor.row_dim, box.start, box.stop - box.start)
            assert torch.equal(weight, rows)
            assert len(moments) == 2
            assert not any(moment.any() for moment in moments)
            assert {moment.shape for moment in moments} == {weight.shape}
        assert target.adopted == frozenset()


def test_a_view_is_the_memory_of_the_shard():
    _, seat = RankMap.of(plan("2x2")).seats
    target = TargetShards.of(MODEL, seat, HeldState(MODEL), Activity())
    tensor = find_tensor(MODEL, "1.o")  # cut along its columns; this rank has the second half
    for part in target.view(tensor, Piece("1.o", 8, 12)):
        part.fill_(7.0)
    for part in target.shards["1.o"]:
        assert torch.equal(part, torch.tensor([[7.0] * 4 + [0.0] * 4] * 16))


def test_each_tensor_is_progress():
    """A watchdog must not take a rank for stuck that makes room for a large state."""
    seat = RankMap.of(plan("1x2")).seats[0]
    for make in (
        lambda activity: TargetShards.of(MODEL, seat, HeldState(MODEL), activity),
        lambda activity: TargetShards.first(
            MODEL, seat, FirstWeights(partial(initial_rows, 1, INITIAL_DEVIATION)).fill, activity
        ),
    ):
        activity = Activity()
        shards = make(activity).shards
        assert activity.progress >= len(shards) > 0
