"""Getting ready for the next epoch in the background, while the old one trains.

A thread plans the move, connects to the epoch's store, forms the transport of old and new members
and the groups of the new plan, makes room for the state and builds the next engine on it.  A rank
of a device that holds nothing yet runs its kernels once.  Nothing of the running world is touched;
if it fails, only the preparation is lost.
"""

from __future__ import annotations

import functools
import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from migration.nccl_transport import NcclTransport
from migration.transport import Transport
from planner.model.shape import ModelShape
from worker.checkpoint.saver import Saver, saver_of
from worker.checkpoint.start_source import start_source
from worker.contract import Directive
from worker.control.connections import connections, cut
from worker.control.host_memory import free_bytes
from worker.control.store_client import StoreClient
from worker.device.fabric import named
from worker.engine.seam import Engine, Progress, StageBuild
from worker.engine.warm_kernels import warm_kernels
from worker.errors import NoRoom, RendezvousFailed
from worker.rank.memory import note_memory
from worker.rank.memory_check import needed_bytes
from worker.rank.move import Move, plan_move
from worker.rank.services import Services
from worker.state.held_state import HeldState
from worker.state.shards import TargetShards
from worker.state.still import StillState
from worker.world.world import World

LOG = logging.getLogger(__name__)
NOTICE_S = 0.5  # for a cancelled preparation that looks whether it was
END_S = 5.0  # for one that tries to connect to a store that is gone


class Successor(NamedTuple):
    """The engine of the new plan on this rank, once it holds the state; its saver, if it saves."""

    world: World
    target: TargetShards
    engine: Engine
    saver: Saver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Tools of a switch, once all members have met.

    Attributes:
        connections: of the transport, to be cut when the change is called off within the move.
        successor: None on a rank that leaves.
        start: of a start, where the state of this rank's source stands; else None.
    """

    move: Move
    store: StoreClient
    transport: Transport
    connections: frozenset[int] = frozenset()
    successor: Successor | None
    start: Progress | None = None

    @property
    def boundary(self) -> str:
        """The key by which the old ranks tell the joiners that they have stopped."""
        return f"epoch{self.move.directive.epoch}/boundary"

    def end_move(self) -> None:
        """End every wait of the move under way, from whatever thread.

        NCCL has connections of its own, and a thread that serves one that was cut may not end. So
        its transport ends itself, and so does the new world, whose first operations may be under
        way. Nobody waits until they have ended.
        """
        if isinstance(self.transport, NcclTransport):
            why = "the change was called off"
            self.transport.break_(why, limit_s=0.0)
            if self.successor is not None:
                self.successor.world.break_(why, limit_s=0.0)
        else:
            cut(self.connections)

    def give_up(self) -> None:
        """Free everything; the peers notice."""
        self.transport.close()
        self.store.close()
        if self.successor is not None:
            self.successor.engine.release()
            self.successor.world.break_()
            self.successor.world.leave()


class Preparation:
    """One rank's preparation for one directive.

    Attributes:
        directive: that asks for it.
        error: why it failed.
    """

    def __init__(
        self,
        model: ModelShape,
        directive: Directive,
        pod: str,
        slot: int,
        held: HeldState,
        services: Services,
        still: StillState,
        after: Preparation | None = None,
    ) -> None:
        """Begin; this rank holds `held` now, and no number of it is read.

        One that was cancelled, `after`, ends first: which connections are whose is known by when
        they were made.
        """
        self.directive = directive
        self.error: Exception | None = None
        self._held: HeldState | None = held
        self._after, self._still = after, still
        self._before: frozenset[int] | None = None  # connections, once this one is at work
        self._ends: list[Callable[[], object]] | None = None  # of what has formed
        if services.payload.name == "nccl":  # which has connections of its own
            self._ends = []
        self._lock = threading.Lock()
        self._cancelled = False
        self._result: Prepared | None = None
        work = (model, pod, slot, services)
        self._thread = threading.Thread(
            target=self._prepare, args=work, name="prepare-epoch", daemon=True
        )
        self._thread.start()

    @property
    def epoch(self) -> int:
        """Of the directive."""
        return self.directive.epoch

    @property
    def running(self) -> bool:
        """Whether the thread is still at work."""
        return self._thread.is_alive()

    @property
    def result(self) -> Prepared | None:
        """Tools of the switch once all members have met, else None."""
        with self._lock:
            return self._result

    def cancel(self) -> None:
        """Give it up, now or as soon as the thread comes back."""
        with self._lock:
            self._cancelled = True
            self._held = None  # the thread may wait on in C++, and would keep the whole state
            result, self._result = self._result, None
        if result:
            result.give_up()

    def _end_waits(self) -> None:
        """End what this preparation has formed so far, here and for its peers.

        Its connections are cut, unless some are NCCL's: a thread that serves one that was cut may
        not end.  Then store, transport and world end themselves, which cuts those of the store and
        of gloo.  What forms meanwhile ends itself, by `worker.world.forming`.
        """
        if self._ends is not None:
            for end in reversed(self._ends):
                end()
        elif self._before is not None:
            cut(connections() - self._before)

    def wait(self, seconds: float) -> bool:
        """Whether the thread has come back within so many seconds."""
        self._thread.join(seconds)
        return not self.running

    def _await_end(self) -> None:
        """Return when the thread has come back, or does not: then it ends nothing any more."""
        if not self.wait(NOTICE_S):
            self._end_waits()  # it waits in C++, for a peer that will not come
        if not self.wait(END_S):
            LOG.warning("the preparation of epoch %d does not end", self.epoch)
            self._before = None

    def take(self) -> Prepared | None:
        """The result, which now belongs to the caller."""
        with self._lock:
            result, self._result = self._result, None
        return result

    def _prepare(self, model: ModelShape, pod: str, slot: int, services: Services) -> None:
        try:
            prepared = self._meet(model, pod, slot, services)
        except Exception as error:  # whatever it was, the old epoch goes on
            if not self._cancelled:
                LOG.warning("epoch %d could not be prepared", self.epoch, exc_info=error)
            self.error = _without_frames(error)
            return
        finally:
            self._held = None
        with self._lock:
            if not self._cancelled:
                self._result = prepared
                return
        prepared.give_up()

    def _holds(self) -> HeldState:
        """The state that this rank held at the beginning; no frame keeps it while peers meet.

        Raises:
            RendezvousFailed: the preparation was given up.
        """
        with self._lock:
            held = self._held
        if held is None:
            raise RendezvousFailed("the epoch was given up while its ranks met")
        return held

    def _meet(self, model: ModelShape, pod: str, slot: int, services: Services) -> Prepared:
        if self._after is not None:
            self._after._await_end()
            self._after = None
        epoch, before = self.epoch, connections()
        self._before = before
        services.on_phase("prepare")
        move = plan_move(model, self.directive, pod, slot, services.payload.name)
        if move is None:
            raise LookupError(f"rank ({pod}, {slot}) is no member of epoch {epoch}")
        if move.waits_for_boundary:  # else nothing trains that could go on instead
            precision, group_bytes = self.directive.training.precision, services.payload.group_bytes
            wanted_bytes = needed_bytes(model, move, self._holds(), precision, group_bytes)
            if services.device.torch_device.type == "cpu":  # one memory with that of copies
                wanted_bytes += self._still.staging_bytes  # a save under way may allocate as much
            free_bytes = services.free_bytes(move)
            if wanted_bytes > free_bytes:
                raise NoRoom(wanted_bytes, free_bytes)
        services.activity.advance()
        store = services.connect_store(self.directive.store, epoch, lambda: self._cancelled)
        self._note(store.close)
        transport: Transport | None = None
        try:
            place, members = move.transport_rank, self.directive.members
            with named(place, range(len(members)), [member.node for member in members]):
                transport = services.form_transport(
                    store, f"epoch{epoch}/transport", place, len(members)
                )
            self._note(transport.close)
            own = connections() - before
            services.activity.advance()
            self._holds()  # one that was given up goes no further
            successor, start = self._succeed(model, move, store, services)
        except BaseException as error:
            if move.seat is not None:
                precision = self.directive.training.precision
                note_memory(error, model, move.seat, precision, epoch, services.device)
            self._end_waits()  # the peers are not to wait for this rank
            if transport is not None:
                transport.close()
            store.close()
            raise
        return Prepared(
            move=move,
            store=store,
            transport=transport,
            connections=own,
            successor=successor,
            start=start,
        )

    def _note(self, end: Callable[[], object]) -> None:
        """One thing more has formed, and `end` ends every wait in it."""
        if self._ends is not None:
            self._ends.append(end)

    def _succeed(
        self,
        model: ModelShape,
        move: Move,
        store: StoreClient,
        services: Services,
    ) -> tuple[Successor | None, Progress | None]:
        seat, spec = move.seat, self.directive.training
        if seat is None:
            return None, None
        start = None
        services.on_phase("form")
        world = services.form_world(store, self.epoch, seat.rank, model, move.plan)

        def end() -> None:
            world.break_()
            world.leave()

        self._note(end)
        services.on_phase("build")
        if move.moves_state:
            target = TargetShards.of(
                model, seat, self._holds(), services.activity, spec.precision, services.device
            )
        else:
            source = start_source(model, self.directive)
            start = source.progress
            target = TargetShards.first(
                model, seat, source.fill, services.activity, spec.precision, services.device
            )
        build = StageBuild(
            model=model,
            spec=spec,
            plan=move.plan,
            seat=seat,
            world=world,
            shards=target.shards,
            buffers=target.buffers,
            activity=services.activity,
            still=self._still,
        )
        engine = services.build_engine(build)
        if services.device.torch_device.type != "cpu" and move.member.holds is None:
            services.on_phase("warm")
            warm_kernels(build)
        host_bytes = functools.partial(_host_bytes, move)
        saver = saver_of(
            model, self.directive, move.plan, seat, self._still, host_bytes, services.device
        )
        return Successor(world, target, engine, saver), start


def _host_bytes(move: Move) -> int:
    """Memory of the host that this rank may fill with copies of its state."""
    here = move.member.node
    return free_bytes() // sum(member.node == here for member in move.directive.members)


def _without_frames(error: Exception) -> Exception:
    """An error that keeps no frame: one would keep a group, and so its connections, open.

    Those of an error that came before it know this thread's own frame, and that the preparation,
    which knows the error: nothing would be freed before the garbage collector comes by.
    """
    traceback.clear_frames(error.__traceback__)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
