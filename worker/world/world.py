"""The world of one epoch: the groups of ranks that train its plan.

Every epoch forms its own groups under names that are never used twice, and torch's default group
has one member in every process, for life: no plan ever changes it.  Breaking a world is what tells
the peers that something is wrong: a rank that gets an error leaves at once, and the error cascades
to every rank that waits for it.

There are two planes.  Payload (gradients, activations, partial results) goes through `groups`, on
tensors of the device.  What decides (slots of the step, digests, tables) is host tensors in one
group of all ranks over gloo, so that no decision depends on what a device's communicator does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from migration.transport import END_S, ReduceOp
from planner.model.shape import ModelShape
from planner.plans.pieces import holders
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from worker.control.activity import Activity
from worker.device.broken import Broken, Patience
from worker.device.device import Device
from worker.device.fabric import between, named
from worker.errors import FabricHangs
from worker.world.gloo_wire import GlooWire
from worker.world.group import Group, Ranks
from worker.world.sentinel import Sentinel
from worker.world.wire import FormWire

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
    ranks = RankMap.of(plan)
    found |= {group for pipeline in ranks.pipelines for group in pipeline.ranks}
    tiled = (s for s in ranks.seats if s.pipeline.template.stages[s.stage].is_tiled)
    found |= {group for seat in tiled for group in seat.expert_ranks}
    found |= {group for seat in ranks.seats if plan.zero for group in seat.owner_ranks}
    everyone = tuple(range(plan.gpus))
    return (*sorted(ranks for ranks in found if 1 < len(ranks) < plan.gpus), everyone)


def join_world_of_one() -> None:
    """Make torch's default group a group of this process alone, once in its life."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


Round = tuple[Sequence[int], Sequence[int]]
HANG_S = 1_800.0  # for the work of a step on the device, as long as nobody knows why it waits
TRY_S = 60.0  # for the first operations of a world; NCCL connects to a peer in 0.1 s


class World:
    """Membership of one rank in one epoch's world; forming it waits for its peers.

    Attributes:
        rank: of this process.
        size: number of ranks.
        groups: {ranks: group} for every set of `rank_sets` that this rank belongs to.
        device: of this rank, where the tensors live that `groups` take.
        broken: the flag of this world.
        wire_bytes: of the device, that the wires held by themselves after their first operations.
    """

    def __init__(
        self,
        store: Store,
        epoch: int,
        rank: int,
        size: int,
        sets: tuple[Ranks, ...],
        activity: Activity,
        *,
        device: Device,
        nodes: Sequence[str] = (),
        form_wire: FormWire = GlooWire.form,
    ) -> None:
        """Form all groups of `sets` that this rank belongs to, in the order given.

        `nodes` are the names of the node of each rank, for sentences; empty: nobody knows them.

        Raises:
            FabricHangs: ranks of a set have met, and did not connect in time.
            RuntimeError: a peer did not come, or is gone.
        """
        self.rank, self.size, self.device = rank, size, device
        self.groups: dict[Ranks, Group] = {}
        self.broken, self.wire_bytes = Broken(), 0
        self._activity, self._nodes = activity, nodes
        self._control: Group | None = None
        self._sentinel: Sentinel | None = None  # of wires that do not notice a dead peer
        self._store = store  # torch does not keep one that is written in Python
        try:
            for index, ranks in enumerate(sets):
                if rank in ranks:
                    name = f"epoch{epoch}/group{index}"
                    with named(rank, ranks, nodes):
                        formed = Group.form(store, name, ranks, rank, activity, form_wire)
                    self.groups[ranks] = formed
            self._control = self.everyone.control(activity)
            if self._control is None:
                gloo = GlooWire.form(store, f"epoch{epoch}/control", rank, size)
                self._control = Group(self.everyone.ranks, gloo, activity)
                self._sentinel = Sentinel(gloo, rank, size, self.break_)
        except BaseException:
            self.break_()  # its peers may be further on, and wait in what has formed
            self.leave()
            raise

    @property
    def everyone(self) -> Group:
        """The group of all ranks for payload; ConnectionError once the world has broken."""
        ranks = tuple(range(self.size))
        if ranks not in self.groups:
            raise ConnectionError("the world of this epoch is gone")
        return self.groups[ranks]

    @property
    def control(self) -> Group:
        """The group of all ranks for host tensors; ConnectionError once the world has broken."""
        if self._control is None:
            raise ConnectionError("the world of this epoch is gone")
        return self._control

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The numbers of a tensor that peers had a part in, in memory of the host.

        Raises:
            ConnectionError: the world is broken, so the numbers may be garbage.
            DeviceSilent: it is, and the device does not come to an end.
        """
        if tensor.is_cpu or self.size == 1:  # what then does not come is no peer's fault
            return self.device.host(tensor, self.broken)
        with self._activity.wait():  # for the peers whose sums the device awaits
            found = self.device.host(tensor, Patience(self.broken, HANG_S, self._hang))
        for group in self.groups.values():
            if (why := group.own_end()) is not None:
                self.break_(why)
        self.broken.check()
        return found

    def _hang(self) -> None:
        self.break_(
            f"rank {self.rank} has awaited its device for {HANG_S:,.0f} s; a GPU, or the network "
            "between GPUs, hangs"
        )

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> None:
        """Reduce a host tensor in place over all ranks."""
        self.control.all_reduce_(tensor, op)
        self.broken.check()

    def all_say(self, word: bool) -> bool:
        """Whether all ranks say yes; a collective."""
        table = torch.tensor([int(not word)])
        self.all_reduce_(table, "sum")
        return not int(table)

    @property
    def connects_late(self) -> bool:
        """Whether its wires connect at their first operation, and free memory of the device."""
        return self._sentinel is not None

    def try_links(self, rounds: Sequence[Round]) -> None:
        """Make the first operations of wires that connect late, in one order on all ranks.

        A communicator connects at its first operation, and two ranks at their first message.
        Called by all ranks at one boundary, in the thread that trains.  Each is awaited by the host
        before the next one, so that one that hangs is known.

        Args:
            rounds: (ranks to send to, ranks to receive from) of this rank, round by round.

        Raises:
            FabricHangs: an operation of this rank has not ended in `TRY_S`.
            ConnectionError: a peer is gone.
        """
        tried: Ranks = ()  # peers of the operation under way
        is_late = threading.Event()

        def hangs() -> str:
            return (
                f"the first operation of {between(self.rank, tried, self._nodes)} has not ended in "
                f"{TRY_S:g} s; look at the network between their nodes"
            )

        def end() -> None:
            is_late.set()
            self.break_(hangs())

        late = threading.Timer(TRY_S, end)
        late.daemon = True
        late.start()
        try:
            one = self.device.put(torch.ones(1))
            for ranks, group in self.groups.items():
                tried = ranks
                group.all_reduce_(one, "min")
                self.host(one)
            for targets, sources in rounds:
                tried = (*targets, *sources)
                sends = [(rank, one) for rank in targets]
                came = [(rank, torch.empty_like(one)) for rank in sources]
                self.everyone.exchange(sends, came)
                for _, tensor in came:
                    self.host(tensor)
            self.host(one)
            self.wire_bytes = sum(group.held_bytes() for group in self.groups.values())
        except (ConnectionError, RuntimeError):
            if not is_late.is_set():
                raise
            raise FabricHangs(hangs()) from None
        finally:
            late.cancel()

    def break_(self, why: str = "the world of this epoch is gone", limit_s: float = END_S) -> None:
        """End this world: whoever waits for this rank, or here, gets an error.

        The flag comes first, so that no number that an ended wait brings is used.  A wire that
        does not end within `limit_s` is left behind in its thread.
        """
        self.broken.set(why)
        groups = [*self.groups.values(), *([self._control] if self._control else [])]

        def end() -> None:
            Group.abort_all(groups)

        ending = threading.Thread(target=end, name="break-world", daemon=True)
        try:
            ending.start()
        except RuntimeError:  # no thread is left, which may be why this world breaks
            return end()
        return ending.join(limit_s)

    def held_bytes(self) -> int:
        """The most that this rank has held so far, its wires with it."""
        return self.device.held_bytes() + self.wire_bytes

    def leave(self, wait: bool = False) -> None:
        """Give up all groups.

        Freeing a gloo group takes about 12 ms for each of its peers, so unless `wait` a thread
        drops the last reference.  Wires of a device free its memory, which may wait for the whole
        device: they go now, while this thread gives it no work, or are left behind.
        """
        if self.connects_late:
            self.break_()  # it holds the control group as long as it watches
        last = [group.release() for group in self.groups.values()]
        self.groups.clear()
        if self._control is not None:
            last.append(self._control.release())
            self._control = None
        if wait:
            last.clear()
            return
        leaving = threading.Thread(target=last.clear, name="leave-world", daemon=True)
        leaving.start()
        if self.connects_late:
            leaving.join(END_S)
