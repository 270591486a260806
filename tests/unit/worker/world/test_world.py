"""worker/world/world.py: exactly the groups that a plan needs, and nothing that outlives them."""

from __future__ import annotations

import threading
import time

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
from worker.control.activity import Activity
from worker.control.connections import connections
from worker.control.store_client import StoreClient
from worker.device.device import CPU
from worker.errors import FabricHangs, RendezvousFailed
from worker.world.world import World, join_world_of_one, leads, rank_sets

UNEQUAL = plan("2x1+1x1", "1x2")  # ranks 0 and 1, 2, and 3
SHAPES = ("1x2", "2x2", "4x2", "1x1+1x1", "2x1+1x1", "1x1+4x1")
EVERYONE = (0, 1, 2, 3)
STEPS = 20


def test_the_lead_of_each_pipeline_is_its_first_holder():
    assert leads(((0, 1), (4,), (7, 8, 9))) == (0, 4, 7)


def test_the_sets_of_an_unequal_plan():
    """The TP pair; the leads of replicated and of sharded tensors; stage 2 with the replica."""
    assert rank_sets(MODEL, UNEQUAL) == ((0, 1), (0, 3), (1, 3), (2, 3), EVERYONE)


def test_one_rank_alone_is_everyone():
    assert rank_sets(MODEL, plan("1x2")) == ((0,),)


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
def test_there_is_a_group_for_every_sum_and_every_tp_group_and_everyone_is_last(shapes):
    trained = plan(*shapes)
    *sets, everyone = rank_sets(MODEL, trained)
    sums = {leads(owners) for owners in holders(MODEL, trained).values()}
    tensor_parallel = {seat.tp_ranks for seat in RankMap.of(trained).seats}
    wanted = {ranks for ranks in sums | tensor_parallel if len(ranks) > 1}
    assert everyone == tuple(range(trained.gpus))
    assert set(sets) == wanted - {everyone}
    assert sets == sorted(set(sets))


def test_a_world_of_one_rank_reduces_to_itself_and_leaves_nothing():
    before = connections()
    world = World(HashStore(), 1, 0, 1, ((0,),), Activity(), device=CPU)
    assert (world.rank, world.size, list(world.groups)) == (0, 1, [(0,)])
    tensor = torch.tensor([3.0])
    world.all_reduce_(tensor, "max")
    assert tensor.item() == 3.0
    world.leave(wait=True)
    assert (world.groups, connections()) == ({}, before)
    with pytest.raises(ConnectionError, match="the world of this epoch is gone"):
        world.all_reduce_(tensor)


def test_torchs_default_group_is_none_of_it():
    """Neither forming a world nor leaving it touches what DeepSpeed believes in."""
    was = dist.is_initialized()
    World(HashStore(), 1, 0, 1, ((0,),), Activity(), device=CPU).leave(wait=True)
    assert dist.is_initialized() == was


def test_a_world_that_is_given_up_while_it_forms_keeps_no_group():
    given_up = StoreClient(HashStore(), lambda: True)
    before = connections()
    with pytest.raises(RendezvousFailed, match="given up"):
        World(given_up, 1, 0, 2, ((0,), (0, 1)), Activity(), device=CPU)
    given_up.close()
    assert connections() == before


def claims(rank, store):
    """Two epochs of one process, the second formed while the first trains; four ranks."""
    join_world_of_one()
    join_world_of_one()  # once in its life, however often it is asked
    found, before = {"alone": dist.get_world_size()}, connections()
    sets = rank_sets(MODEL, UNEQUAL)
    old = World(store, 1, rank, 4, sets, Activity(), device=CPU)
    formed = []
    forming = threading.Thread(
        target=lambda: formed.append(World(store, 2, rank, 4, sets, Activity(), device=CPU)),
        daemon=True,
    )
    found["trained"] = []
    for step in range(2 * STEPS):
        if step == (STEPS if rank == 3 else 0):
            forming.start()  # rank 3 comes late, and all wait for it in their threads
        if step == STEPS - 1:
            found["formed early"] = len(formed)
        tensor = torch.tensor([float(rank + step)])
        old.all_reduce_(tensor)
        found["trained"].append(tensor.item())
    forming.join(60)
    old.leave(wait=True)
    (world,) = formed
    found["groups"] = list(world.groups)
    for op in ("sum", "min", "max"):
        tensor = torch.tensor([float(rank)])
        world.all_reduce_(tensor, op)
        found[op] = tensor.item()
    found["sums"] = {}
    for ranks, group in world.groups.items():
        tensor = torch.tensor([float(10**rank)])
        group.all_reduce_(tensor)
        found["sums"][str(ranks)] = tensor.item()
    world.leave(wait=True)
    found["left"] = len(connections() - before)
    return found


@pytest.mark.slow
def test_four_ranks_form_their_next_world_in_a_thread_while_they_train():
    found = run_ranks("tests.unit.worker.world.test_world:claims", 4)
    everyone = list(EVERYONE)
    assert [rank["groups"] for rank in found] == [
        [[0, 1], [0, 3], everyone],
        [[0, 1], [1, 3], everyone],
        [[2, 3], everyone],
        [[0, 3], [1, 3], [2, 3], everyone],
    ]
    for rank in found:
        assert rank["trained"] == [6.0 + 4 * step for step in range(2 * STEPS)]
        assert (rank["formed early"], rank["alone"], rank["left"]) == (0, 1, 0)
        assert (rank["sum"], rank["min"], rank["max"]) == (6.0, 0.0, 3.0)
    assert found[3]["sums"] == {
        "(0, 3)": 1001.0,
        "(1, 3)": 1010.0,
        "(2, 3)": 1100.0,
        "(0, 1, 2, 3)": 1111.0,
    }


AT_ONCE_S = 5.0  # a cut takes milliseconds; without one a collective waits for minutes


def cut_claims(rank, store):
    """When each of three ranks was told that rank 2 has cut its world, on one clock."""
    world = World(store, 1, rank, 3, ((0, 1, 2),), Activity(), device=CPU)
    if rank == 2:
        time.sleep(0.3)
        cut_s = time.monotonic()
        world.break_()
        store.wait(["told0", "told1"])  # it lives on, and so does its store's connection
        with pytest.raises(RuntimeError):
            world.all_reduce_(torch.zeros(1))
        return cut_s
    with pytest.raises(RuntimeError):
        world.all_reduce_(torch.zeros(1))
    told_s = time.monotonic()
    world.break_()  # as a rank does at any error: not everyone's wait is for rank 2
    store.set(f"told{rank}", "now")
    return told_s


@pytest.mark.slow
def test_who_cuts_its_world_fails_the_peers_at_once():
    *told_s, cut_s = run_ranks("tests.unit.worker.world.test_world:cut_claims", 3)
    assert all(0 <= at_s - cut_s < AT_ONCE_S for at_s in told_s)


def test_what_has_formed_of_a_world_that_fails_ends_for_its_peers_too():
    """A wire that is only dropped may tell nobody."""
    ended = []

    class Formed:
        control = None

        def abort(self):
            ended.append(self)

        def release(self):
            return None

    def form(store, name, place, size):
        if name.endswith("group1"):
            raise FabricHangs("it does not connect")
        return Formed()

    with pytest.raises(FabricHangs):
        World(None, 1, 0, 2, ((0,), (0, 1)), Activity(), device=CPU, form_wire=form)
    assert len(ended) == 1
