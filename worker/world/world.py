"""The world of one epoch: the groups of ranks that train its plan.

Every epoch forms its own groups under names that are never used twice, and torch's default group
has one member in every process, for life: no plan ever changes it.  Cutting a world's connections
is what tells the peers that something is wrong: a rank that gets an error leaves at once, and the
error cascades to every rank that waits for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from planner.model.shape import ModelShape
from planner.plans.pieces import holders
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from worker.control.activity import Activity
from worker.control.connections import connections, cut
from worker.world.group import Group, Ranks, ReduceOp

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def leads(owners: tuple[Ranks, ...]) -> Ranks:
    """The ranks that speak for their contributors when a piece is summed."""
    return tuple(ranks[0] for ranks in owners)


def rank_sets(model: ModelShape, plan: Plan) -> tuple[Ranks, ...]:
    """Every set of at least two ranks that communicates within the epoch, sorted.

    The last step of the order in which all ranks form their groups is the plan as a whole.
    """
    found = {leads(owners) for owners in holders(model, plan).values()}
    found |= {group for pipeline in RankMap.of(plan).pipelines for group in pipeline.ranks}
    everyone = tuple(range(plan.gpus))
    return (*sorted(ranks for ranks in found if 1 < len(ranks) < plan.gpus), everyone)


def join_world_of_one() -> None:
    """Make torch's default group a group of this process alone, once in its life."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


class World:
    """Membership of one rank in one epoch's world; forming it waits for its peers.

    Attributes:
        rank: of this process.
        size: number of ranks.
        groups: {ranks: group} for every set of `rank_sets` that this rank belongs to.
        device: where tensors given to `all_reduce_` live.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        store: Store,
        epoch: int,
        rank: int,
        size: int,
        sets: tuple[Ranks, ...],
        activity: Activity,
    ) -> None:
        """Form all groups of `sets` that this rank belongs to, in the order given."""
        self.rank, self.size = rank, size
        self.groups: dict[Ranks, Group] = {}
        self._store = store  # torch does not keep one that is written in Python
        before = connections()
        try:
            for index, ranks in enumerate(sets):
                if rank in ranks:
                    name = f"epoch{epoch}/group{index}"
                    self.groups[ranks] = Group(store, name, ranks, rank, activity)
        except BaseException:
            self.leave()
            raise
        finally:
            self._connections = connections() - before

    @property
    def everyone(self) -> Group:
        """The group of all ranks; ConnectionError once the world has broken."""
        ranks = tuple(range(self.size))
        if ranks not in self.groups:
            raise ConnectionError("the world of this epoch is gone")
        return self.groups[ranks]

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> None:
        """Reduce a tensor in place over all ranks."""
        self.everyone.all_reduce_(tensor, op)

    def all_say(self, word: bool) -> bool:
        """Whether all ranks say yes; a collective."""
        table = torch.tensor([int(not word)], device=self.device)
        self.all_reduce_(table, "sum")
        return not int(table)

    def cut(self) -> None:
        """Close all connections at once: whoever waits for this rank, or here, gets an error."""
        cut(self._connections)

    def leave(self, wait: bool = False) -> None:
        """Give up all groups.

        Freeing a gloo group takes about 12 ms for each of its peers, so unless `wait` a thread
        drops the last reference.
        """
        last = [group.release() for group in self.groups.values()]
        self.groups.clear()
        if wait:
            last.clear()
        else:
            threading.Thread(target=last.clear, name="leave-world", daemon=True).start()
