"""world/grid.py: what DeepSpeed asks is answered for this rank's own pipeline, and no more."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from planner.plans.ranks import RankMap
from tests.unit.worker.changes import plan
from worker.world.grid import Grid, Topology
from worker.world.world import World

SEATS = RankMap.of(plan("2x1+1x1", "1x2")).seats  # stages of ranks 0 and 1, 2; then 3 alone


@pytest.fixture
def world():
    """The world of one rank: a grid asks it only for the group of that rank."""
    found = World(HashStore(), 1, 0, 1, 10.0)
    found.form_groups(())
    yield found
    found.leave(wait=True)


def test_each_rank_sees_the_depth_of_its_own_pipeline():
    assert [Topology(seat).get_dim("pipe") for seat in SEATS] == [2, 2, 2, 1]


def test_pipe_is_the_only_axis():
    with pytest.raises(KeyError):
        Topology(SEATS[0]).get_dim("data")


def test_a_rank_has_a_coordinate_and_the_others_have_none():
    assert [Topology(seat).get_coord(seat.rank).pipe for seat in SEATS] == [0, 0, 1, 0]
    with pytest.raises(LookupError, match="rank 3 has no coordinates here, only 2 has"):
        Topology(SEATS[2]).get_coord(3)


def test_inside_deepspeed_every_replica_is_alone(world):
    for seat in SEATS:
        grid = Grid(seat, world)
        assert (grid.get_global_rank(), grid.get_stage_id()) == (seat.rank, seat.stage)
        assert (grid.pipe_parallel_size, grid.model_parallel_size) == (
            len(seat.pipeline.ranks),
            seat.tp,
        )
        assert (grid.data_parallel_size, grid.data_parallel_id) == (1, 0)
        assert grid.get_data_parallel_world_size() == grid.get_model_parallel_world_size() == 1
        assert grid.get_model_parallel_rank() == 0
        assert grid.get_data_parallel_group() is world.alone
        assert grid.get_model_parallel_group() is world.alone


@pytest.mark.parametrize(
    "probe",
    [
        "initialize_sequence_parallel",
        "get_sequence_parallel_world_size",
        "get_slice_parallel_group",
    ],
)
def test_what_deepspeed_probes_for_is_absent(world, probe):
    assert not hasattr(Grid(SEATS[0], world), probe)
