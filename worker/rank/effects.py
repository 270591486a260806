"""What a rank needs from outside, as seams: the store it meets at, the transport, the engine.

`worker.rank.process` wires the real ones; a test that injects a fault wires one of them wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from migration.transport import Transport
from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from worker.engine.seam import Engine, StageBuild
from worker.world.world import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Services(Protocol):
    """The effects of a rank."""

    timeout_s: float

    def connect_store(self, address: str) -> Store:
        """A client of the store at host:port."""

    def form_transport(self, store: Store, prefix: str, rank: int, size: int) -> Transport:
        """Meet the other members of a change; called in a thread while the old world trains."""

    def form_world(
        self,
        store: Store,
        epoch: int,
        rank: int,
        model: ModelShape,
        plan: Plan,
        is_cancelled: Callable[[], bool],
    ) -> World:
        """Form the world of an epoch, which becomes the default group, and its groups.

        `is_cancelled` is asked while it waits for its peers.
        """

    def leave_world(self, world: World) -> None:
        """Leave it and drop everything that keeps its connections open."""

    def build_engine(self, build: StageBuild) -> Engine:
        """An engine for one rank."""

    def on_phase(self, name: str) -> None:
        """A part of a switch begins; for observers only."""
