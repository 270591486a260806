"""worker/world/world.py: exactly the groups that a plan needs, and nothing that outlives them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from planner.plans.pieces import holders
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, plan
from tests.unit.worker.ranks import run_ranks
from worker.world.world import World, leads, rank_sets

UNEQUAL = plan("2x1+1x1", "1x2")  # ranks 0 and 1, 2, and 3
SHAPES = ("1x2", "2x2", "4x2", "1x1+1x1", "2x1+1x1", "1x1+4x1")


def test_the_lead_of_each_pipeline_is_its_first_holder():
    assert leads(((0, 1), (4,), (7, 8, 9))) == (0, 4, 7)


def test_the_sets_of_an_unequal_plan():
    """The TP pair; the leads of replicated and of sharded tensors; stage 2 with the replica."""
    assert rank_sets(MODEL, UNEQUAL) == ((0, 1), (0, 3), (1, 3), (2, 3))


def test_one_rank_alone_needs_no_group():
    assert rank_sets(MODEL, plan("1x2")) == ()


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
def test_there_is_a_group_for_every_sum_and_every_tp_group_and_no_other(shapes):
    trained = plan(*shapes)
    sets = rank_sets(MODEL, trained)
    sums = {leads(owners) for owners in holders(MODEL, trained).values()}
    tensor_parallel = {seat.tp_ranks for seat in RankMap.of(trained).seats}
    assert set(sets) == {ranks for ranks in sums | tensor_parallel if len(ranks) > 1}
    assert list(sets) == sorted(set(sets))


def test_a_world_of_one_rank_reduces_to_itself_and_leaves_nothing():
    world = World(HashStore(), 1, 0, 1, 10.0)
    try:
        world.form_groups(())
        assert (world.rank, world.size, world.groups) == (0, 1, {})
        assert world.alone is dist.group.WORLD
        tensor = torch.tensor([3.0])
        world.all_reduce_(tensor, "max")
        assert tensor.item() == 3.0
    finally:
        world.leave(wait=True)
    assert not dist.is_initialized()
    assert world.alone is None


def claims(rank, store):
    """Two epochs of one process; runs on four ranks."""
    found = {}
    for epoch in (1, 2):
        world = World(store, epoch, rank, 4, 30.0)
        world.form_groups(rank_sets(MODEL, UNEQUAL))
        found["groups"] = sorted(map(list, world.groups))
        found["alone"] = dist.get_world_size(world.alone)
        for op in ("sum", "min", "max"):
            tensor = torch.tensor([float(rank)])
            world.all_reduce_(tensor, op)
            found[op] = tensor.item()
        sums = {}
        for ranks, group in sorted(world.groups.items()):
            tensor = torch.tensor([float(10**rank)])
            dist.all_reduce(tensor, group=group)
            sums[str(ranks)] = tensor.item()
        found["sums"] = sums
        world.leave(wait=True)
        found["left"] = not dist.is_initialized() and world.groups == {}
    return found


@pytest.mark.slow
def test_four_ranks_form_two_worlds_in_a_row():
    found = run_ranks("tests.unit.worker.world.test_world:claims", 4)
    assert [rank["groups"] for rank in found] == [
        [[0, 1], [0, 3]],
        [[0, 1], [1, 3]],
        [[2, 3]],
        [[0, 3], [1, 3], [2, 3]],
    ]
    assert all((rank["sum"], rank["min"], rank["max"]) == (6.0, 0.0, 3.0) for rank in found)
    assert found[3]["sums"] == {"(0, 3)": 1001.0, "(1, 3)": 1010.0, "(2, 3)": 1100.0}
    assert [rank["alone"] for rank in found] == [1, 1, 1, 1]
    assert all(rank["left"] for rank in found)
