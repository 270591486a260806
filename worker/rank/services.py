"""A rank's needs from outside, as seams: the store it meets at, the transport, the engine.

`worker.rank.process` wires the real ones; a test that injects a fault wires one of them wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from migration.transport import Transport
from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from worker.control.activity import Activity
from worker.control.store_client import StoreClient
from worker.device.device import Device
from worker.engine.seam import Engine, StageBuild
from worker.rank.move import Move
from worker.world.payload import Payload
from worker.world.world import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Services(Protocol):
    """The services that a rank uses.

    Attributes:
        activity: of this rank, which all services keep up to date.
        device: of this rank.
        payload: the wire of this rank.
    """

    activity: Activity
    device: Device
    payload: Payload

    def connect_store(
        self, address: str, epoch: int, is_cancelled: Callable[[], bool]
    ) -> StoreClient:
        """A client of the epoch's store at host:port; `is_cancelled` is asked while it waits."""

    def form_transport(self, store: Store, prefix: str, rank: int, size: int) -> Transport:
        """Meet the other members of a change; called in a thread while the old world trains."""

    def form_world(
        self, store: Store, epoch: int, rank: int, model: ModelShape, plan: Plan
    ) -> World:
        """Form the groups of an epoch; called in a thread while the old world trains."""

    def free_bytes(self, move: Move) -> int:
        """Memory that this rank may fill for a change, beside what it holds."""

    def build_engine(self, build: StageBuild) -> Engine:
        """An engine for one rank; called in a thread while the old one trains."""

    def on_phase(self, name: str) -> None:
        """A part of a change begins; for observers only."""
