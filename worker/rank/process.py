"""The composition root of a rank process: wires DeepSpeed, gloo and the store into a `Rank`."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from migration.transport import Transport
from planner.cluster.composition import Composition, Node
from planner.cost.evaluate import RankTimes, rank_times
from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from planner.profiles.generator import find_profile
from worker.control.activity import Activity
from worker.control.channel import Channel
from worker.control.store_client import PATIENCE_S, StoreClient, connect
from worker.data.dataset import Dataset
from worker.data.held_out import HeldOut
from worker.device.choice import own_device
from worker.device.device import CPU, Device
from worker.engine import deepspeed as deepspeed_engine
from worker.engine.seam import Engine, StageBuild
from worker.engine.update_digest import check_update
from worker.log_lines import note
from worker.rank.move import Move
from worker.rank.rank import Rank
from worker.training_settings import DataSpec
from worker.world.pace import EmulatedPace, Pace, RealPace
from worker.world.payload import form_transport, payload_of
from worker.world.world import World, rank_sets

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


LOG = logging.getLogger(__name__)


class GlooServices:
    """The services of a rank: decisions over gloo, payload over the wire of its device.

    Attributes:
        payload: that wire.
    """

    def __init__(self, *, emulate: bool, store_key: str, device: Device = CPU) -> None:
        self.activity, self.device = Activity(), device
        self._emulate, self._store_key = emulate, store_key
        self.payload = payload_of(device)

    def connect_store(
        self, address: str, epoch: int, is_cancelled: Callable[[], bool]
    ) -> StoreClient:
        """See `Services`."""
        return connect(address, self._store_key, epoch, is_cancelled)

    def form_transport(self, store: Store, prefix: str, rank: int, size: int) -> Transport:
        """See `Services`."""
        waiting = functools.partial(self.activity.wait, may_be_left=True)
        return form_transport(
            self.payload,
            self.device,
            store,
            prefix,
            rank,
            size,
            patience_s=PATIENCE_S,
            waiting=waiting,
            reading=self.activity.wait,
        )

    def form_world(
        self, store: Store, epoch: int, rank: int, model: ModelShape, plan: Plan
    ) -> World:
        """See `Services`."""
        seats = RankMap.of(plan).seats
        self.device.check(seats[rank].gpu_type)
        check_update(self.device, frozenset(seat.gpu_type for seat in seats))
        sets = rank_sets(model, plan)
        return World(
            store,
            epoch,
            rank,
            plan.gpus,
            sets,
            self.activity,
            device=self.device,
            nodes=[seat.node for seat in seats],
            form_wire=self.payload.form_wire,
        )

    def free_bytes(self, move: Move) -> int:
        """See `Services`; emulated devices share this machine's memory too."""
        here = move.member.node
        return self.device.free_bytes(sum(member.node == here for member in move.directive.members))

    def build_engine(self, build: StageBuild) -> Engine:
        """See `Services`."""
        spec = build.spec
        dataset = _dataset(spec.data, spec.sequence_length, build.model.vocab)
        held_out = None
        if spec.evaluate_every is not None:
            held_out = _held_out(
                spec.data, spec.sequence_length, build.model.vocab, spec.evaluate_samples
            )
        return deepspeed_engine.DeepSpeedEngine(build, dataset, self._pace(build), held_out)

    def on_phase(self, name: str) -> None:
        """See `Services`; nobody observes."""

    def emulated_times(self, build: StageBuild) -> RankTimes:
        """The seconds of each instruction of the rank, by the profile of its own model."""
        workload = build.spec.workload(build.model)
        composition = nodes_of(build.plan)
        times = rank_times(build.plan, workload, composition, find_profile(workload))
        return times[build.seat.rank]

    def _pace(self, build: StageBuild) -> Pace:
        return EmulatedPace(self.emulated_times(build)) if self._emulate else RealPace()


@functools.lru_cache(maxsize=1)
def _dataset(spec: DataSpec, sequence_length: int, vocab: int) -> Dataset:
    return Dataset(spec, sequence_length, vocab)


@functools.lru_cache(maxsize=1)
def _held_out(spec: DataSpec, sequence_length: int, vocab: int, samples: int | None) -> HeldOut:
    return HeldOut.of(spec, sequence_length, vocab, samples)


def nodes_of(plan: Plan) -> Composition:
    """The nodes that the plan uses, as far as it says.

    Emulated devices have no other speed than their type's.
    """
    seats = RankMap.of(plan).seats
    gpus: dict[tuple[str, str], int] = {}
    for seat in seats:
        key = (seat.node, seat.gpu_type)
        gpus[key] = max(gpus.get(key, 0), seat.gpu + 1)
    return Composition(
        tuple(
            Node(name=name, gpu_type=gpu_type, gpus=count)
            for (name, gpu_type), count in gpus.items()
        )
    )


def main(
    connection: socket.socket,
    *,
    pod: str,
    slot: int,
    store_key: str,
    job: str = "",
    emulate: bool = False,
    device: str = "cpu",
    services_of: type[GlooServices] = GlooServices,
    channel_of: type[Channel] = Channel,
    **_: object,
) -> None:
    """Run one rank until it leaves, is told to exit, or its agent is gone.

    Tests and benchmarks give `services_of`, which wrap a service or emulate another model's times,
    and `channel_of`, which tells the rank another thing than its agent does.
    """
    note(job=job, pod=pod, slot=slot)
    deepspeed_engine.check_deepspeed()
    own = own_device(device, slot)
    deepspeed_engine.begin()
    services = services_of(emulate=emulate, store_key=store_key, device=own)
    LOG.info("payload travels on the wire %s", services.payload.about)
    Rank(channel_of(connection), pod, slot, services).run()
