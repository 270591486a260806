"""DeepSpeed's questions about the arrangement of ranks, answered for an irregular plan.

DeepSpeed's own grid wants pipe x data x model == world size and one coordinate system for all
ranks.  No such thing exists here, but DeepSpeed only ever asks from one rank's point of view: how
many stages has *my* pipeline, which is mine.  Inside DeepSpeed every replica is alone (data
parallel degree 1): replicas of a template may run different numbers of micro-batches, and the
reduction over the holders of each piece is ours (`gradient_sync`).  And every process is a world of
its own: of tensor parallelism DeepSpeed knows nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from planner.plans.ranks import Seat


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
        """This rank's stage; there is no other rank in a world of one."""
        if rank != 0:
            raise LookupError(f"rank {rank} has no coordinates in a world of one")
        return SimpleNamespace(pipe=self._seat.stage)


class Grid:
    """Stands in for PipelineParallelGrid, and so for the `mpu` of the engine.

    Exactly what training reads.

    DeepSpeed also probes with hasattr (`initialize_sequence_parallel`,
    `get_sequence_parallel_world_size`, ...): those must stay absent.
    """

    data_parallel_size = model_parallel_size = 1
    data_parallel_id = 0

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.pipe_parallel_size = len(seat.pipeline.ranks)

    def get_global_rank(self) -> int:
        """Always 0, in torch's default group."""
        return 0

    def get_stage_id(self) -> int:
        """Stage in the pipeline."""
        return self._seat.stage

    def get_data_parallel_group(self) -> Any:
        """Torch's default group, of this rank only."""
        return dist.group.WORLD

    def get_data_parallel_world_size(self) -> int:
        """Always 1."""
        return 1

    get_model_parallel_group = get_data_parallel_group
    get_model_parallel_world_size = get_data_parallel_world_size

    def get_model_parallel_rank(self) -> int:
        """Always 0."""
        return 0
