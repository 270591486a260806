"""The world of one epoch.

Torch's default group over exactly the ranks of its plan, and the groups inside it.

DeepSpeed's collectives need world == ranks of the plan, so every epoch forms its own world under a
store prefix that is
never used twice.  Dropping a world is what tells the peers that something is wrong: a rank that
gets an error leaves at once, its sockets close, and the error cascades to every rank that waits for
it.
"""

from __future__ import annotations

import datetime
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from planner.model.shape import ModelShape
from planner.plans.pieces import holders
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap

Ranks = tuple[int, ...]


def leads(owners: tuple[Ranks, ...]) -> Ranks:
    """The ranks that speak for their pipelines when a piece is summed."""
    return tuple(ranks[0] for ranks in owners)


def rank_sets(model: ModelShape, plan: Plan) -> tuple[Ranks, ...]:
    """Every set of at least two ranks that communicates within the epoch, sorted.

    The world itself is not listed.
    """
    found = {leads(owners) for owners in holders(model, plan).values()}
    found |= {group for pipeline in RankMap.of(plan).pipelines for group in pipeline.ranks}
    return tuple(sorted(ranks for ranks in found if len(ranks) > 1))


class World:
    """Membership of one rank in one epoch's world.

    Attributes:
        rank: of this process.
        size: number of ranks.
        groups: {ranks: process group} for every set of `rank_sets` that this rank belongs to.
        alone: a group of this rank only.
        device: where tensors given to `all_reduce_` live.
    """

    device = torch.device("cpu")

    def __init__(self, store: Store, epoch: int, rank: int, size: int, timeout_s: float) -> None:
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._store = store  # torch does not keep one that is written in Python
        # Torch numbers groups, and a world that failed to form has counted: names must agree again.
        distributed_c10d._world.group_count = 0
        prefix = PrefixStore(f"epoch{epoch}/world", store)
        dist.init_process_group(
            "gloo", store=prefix, rank=rank, world_size=size, timeout=self._timeout
        )
        self.rank, self.size = rank, size
        self.groups: dict[Ranks, Any] = {}
        self.alone: Any = None

    def form_groups(self, sets: tuple[Ranks, ...]) -> None:
        """Form all groups; a collective of the world, in the one order that the plan gives."""
        # A group does not inherit the time-out of its world: without one it would wait half an hour
        # for a peer that lost its power, because nobody is left to close the connection.
        for ranks in sets:
            group = (
                dist.group.WORLD
                if len(ranks) == self.size
                else dist.new_group(list(ranks), timeout=self._timeout)
            )
            if self.rank in ranks:
                self.groups[ranks] = group
        self.alone = (
            dist.group.WORLD
            if self.size == 1
            else dist.new_group([self.rank], timeout=self._timeout, use_local_synchronization=True)
        )

    def all_reduce_(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce a tensor in place over all ranks; op is sum, min or max."""
        dist.all_reduce(
            tensor,
            op={"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}[op],
        )

    def leave(self, wait: bool = False) -> None:
        """Forget all groups and close their connections.

        Freeing a gloo group takes about 12 ms for each of its peers, so unless `wait` a thread
        drops the last reference.
        """
        last: list[Any] = [*self.groups.values(), self.alone, dist.group.WORLD]
        self.groups.clear()
        self.alone = None
        if dist.is_initialized():
            dist.destroy_process_group()
        if wait:
            last.clear()
        else:
            threading.Thread(target=last.clear, daemon=True).start()
