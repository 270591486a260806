"""What DeepSpeed asks about the arrangement of ranks, answered for an irregular plan.

DeepSpeed's own grid wants pipe x data x model == world size and one coordinate system for all
ranks.  No such thing exists here, but DeepSpeed only ever asks from one rank's point of view: how
many stages has *my* pipeline, which is mine.  Inside DeepSpeed every replica is alone (data
parallel degree 1): replicas of a template may run different numbers of micro-batches, and the
reduction over the holders of each piece is ours (`gradient_sync`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from planner.plans.ranks import Seat
from worker.world.world import World


class Topology:
    """The two questions that PipelineModule asks of a process topology.

    Both are about this rank's own pipeline.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def get_dim(self, axis: str) -> int:
        """Number of stages; the only axis there is."""
        return {"pipe": len(self._seat.pipeline.ranks)}[axis]

    def get_coord(self, rank: int) -> SimpleNamespace:
        """This rank's stage; other ranks have no coordinates in an irregular plan."""
        if rank != self._seat.rank:
            raise LookupError(f"rank {rank} has no coordinates here, only {self._seat.rank} has")
        return SimpleNamespace(pipe=self._seat.stage)


class Grid:
    """Stands in for PipelineParallelGrid, and so for the `mpu` of the engine.

    Exactly what training reads.

    DeepSpeed also probes with hasattr (`initialize_sequence_parallel`,
    `get_sequence_parallel_world_size`, ...): those must stay absent.
    """

    data_parallel_size = 1
    data_parallel_id = 0

    def __init__(self, seat: Seat, world: World) -> None:
        self._seat, self._alone = seat, world.alone
        self.pipe_parallel_size = len(seat.pipeline.ranks)
        self.model_parallel_size = seat.tp

    def get_global_rank(self) -> int:
        """Rank in the world."""
        return self._seat.rank

    def get_stage_id(self) -> int:
        """Stage in the pipeline."""
        return self._seat.stage

    def get_data_parallel_group(self) -> Any:
        """Of this rank only."""
        return self._alone

    def get_data_parallel_world_size(self) -> int:
        """Always 1."""
        return 1

    def get_model_parallel_group(self) -> Any:
        """DeepSpeed counts parameters over it, for a log line.

        A group of this rank saves forming one a pipeline.
        """
        return self._alone

    def get_model_parallel_world_size(self) -> int:
        """Always 1."""
        return 1

    def get_model_parallel_rank(self) -> int:
        """Always 0."""
        return 0
