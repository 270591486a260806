"""world/grid.py: what DeepSpeed asks is answered for this rank's own pipeline, and no more."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from planner.plans.ranks import RankMap
from tests.unit.worker.changes import plan
from worker.world.grid import Grid, Topology

SEATS = RankMap.of(plan("2x1+1x1", "1x2")).seats  # stages of ranks 0 and 1, 2; then 3 alone


def test_each_rank_sees_the_depth_of_its_own_pipeline():
    assert [Topology(seat).get_dim("pipe") for seat in SEATS] == [2, 2, 2, 1]
    assert [Grid(seat).pipe_parallel_size for seat in SEATS] == [2, 2, 2, 1]


def test_pipe_is_the_only_axis():
    with pytest.raises(KeyError):
        Topology(SEATS[0]).get_dim("data")


def test_a_rank_has_a_coordinate_and_there_is_no_other_rank():
    assert [Topology(seat).get_coord(0).pipe for seat in SEATS] == [0, 0, 1, 0]
    with pytest.raises(LookupError, match="rank 2 has no coordinates in a world of one"):
        Topology(SEATS[2]).get_coord(2)


def test_inside_deepspeed_every_rank_is_alone():
    for seat in SEATS:
        grid = Grid(seat)
        assert (grid.get_global_rank(), grid.get_stage_id()) == (0, seat.stage)
        assert (grid.data_parallel_size, grid.model_parallel_size) == (1, 1)
        assert grid.data_parallel_id == 0
        assert grid.get_data_parallel_world_size() == grid.get_model_parallel_world_size() == 1
        assert grid.get_model_parallel_rank() == 0
        assert grid.get_data_parallel_group() is dist.group.WORLD
        assert grid.get_model_parallel_group() is dist.group.WORLD


@pytest.mark.parametrize(
    "probe",
    [
        "initialize_sequence_parallel",
        "get_sequence_parallel_world_size",
        "get_slice_parallel_group",
    ],
)
def test_what_deepspeed_probes_for_is_absent(probe):
    assert not hasattr(Grid(SEATS[0]), probe)
