"""rank/preparation.py: the next epoch is made ready beside the training, or given up whole."""

from __future__ import annotations

import gc
import logging
import time
import weakref

import pytest
import torch

from migration.errors import TransferFailed
from migration.gloo_transport import GlooTransport
from planner.model.arithmetic import INITIAL_DEVIATION
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, change, held_by, plan
from tests.unit.worker.preparing import DIRECTIVE, NEW, OLD, Client, InMemory, ended, prepare
from tests.unit.worker.ranks import run_ranks
from worker.control.activity import Activity
from worker.control.connections import connections
from worker.device.device import CPU
from worker.model.initial_weights import initial_rows
from worker.rank.move import links_of
from worker.rank.preparation import Preparation
from worker.state.held_state import HeldState, find_tensor
from worker.state.still import StillState
from worker.world.world import World, rank_sets

STEPS = 20


def test_the_next_engine_tells_the_window_of_the_rank():
    services, still = InMemory(), StillState()
    assert ended(prepare(services, still=still)).result is not None
    assert [build.still for build in services.builds] == [still]


def test_once_all_have_met_there_is_all_that_a_switch_needs():
    services = InMemory()
    found = ended(prepare(services))
    prepared = found.result
    move, store, transport = prepared.move, prepared.store, prepared.transport
    own, successor, start = prepared.connections, prepared.successor, prepared.start
    assert start is None  # the state moves
    assert (move.transport_rank, store, transport.rank) == (1, services.store, 1)
    assert own == frozenset()
    assert (successor.world, successor.engine) == (services.world, services.engine)
    assert services.asked == [
        "prepare",
        ("connect_store", DIRECTIVE.store),
        ("form_transport", "epoch2/transport", 1, 2),
        "form",
        ("form_world", 2, 1, NEW),
        "build",
        ("build_engine",),
    ]
    assert (found.epoch, found.error) == (2, None)
    store.close()


def test_a_move_is_planned_for_the_wire_of_the_rank():
    services = InMemory()
    services.payload = services.payload._replace(name="staged")
    move = ended(prepare(services)).result.move
    assert move.transfer.links == links_of(MODEL, DIRECTIVE, "staged", ["a", "a"])
    assert move.transfer.links != ended(prepare(InMemory())).result.move.transfer.links


def test_the_engine_is_built_on_the_home_of_the_seat():
    services = InMemory()
    successor = ended(prepare(services, slot=0)).result.successor
    (build,) = services.builds
    assert (build.seat, build.plan, build.world) == (RankMap.of(NEW).seats[0], NEW, services.world)
    assert build.shards is successor.target.shards
    assert successor.target.adopted == set(successor.target.shards)  # the whole first stage stays
    assert build.activity is services.activity


def test_at_the_start_of_a_job_the_state_is_that_of_its_seed():
    services = InMemory()
    successor = ended(prepare(services, directive=change(None, NEW))).result.successor
    weight, *moments = successor.target.shards["2.q"]
    assert torch.equal(weight, initial_rows(1, INITIAL_DEVIATION, find_tensor(MODEL, "2.q"), 0, 16))
    assert not any(moment.any() for moment in moments)


def test_a_rank_that_leaves_forms_no_world_and_builds_nothing():
    services = InMemory()
    directive = change(plan("2x2"), plan("1x2"))
    held = held_by(plan("2x2"), "a", 1)
    found = ended(Preparation(MODEL, directive, "tiny-a-0", 1, held, services, StillState()))
    assert found.result.successor is None
    assert [name for name, *_ in services.asked if name in ("form_world", "build_engine")] == []


def test_while_the_others_are_awaited_there_is_no_result():
    services = InMemory()
    services.meeting.clear()
    waiting = prepare(services)
    assert waiting.running
    assert waiting.result is None
    services.meeting.set()
    assert ended(waiting).result is not None


def test_what_is_cancelled_once_it_is_ready_frees_all_of_it():
    services = InMemory()
    cancelled = ended(prepare(services))
    cancelled.cancel()
    assert cancelled.result is None
    assert services.given_up() == (True, {1}, ["broken", "leave"], ["release"])
    assert cancelled.error is None


def test_what_is_cancelled_while_the_members_meet_forms_no_world():
    services = InMemory()
    services.meeting.clear()
    cancelled = prepare(services)
    await_store(services)
    cancelled.cancel()
    services.meeting.set()
    assert ended(cancelled).result is None
    assert services.given_up() == (True, {1}, [], [])


class Watched(HeldState):
    """A state that a test sees freed."""

    __slots__ = ("__weakref__",)


def await_store(services):
    """Return once the members are about to meet."""
    deadline_s = time.monotonic() + 10
    while ("connect_store", DIRECTIVE.store) not in services.asked:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    return deadline_s


def test_what_is_cancelled_keeps_no_state_though_its_thread_waits_on():
    services, held = InMemory(), Watched(MODEL)
    services.meeting.clear()
    cancelled = Preparation(MODEL, DIRECTIVE, "tiny-a-0", 1, held, services, StillState())
    deadline_s = await_store(services)
    state = weakref.ref(held)
    del held
    assert state() is not None
    cancelled.cancel()
    try:
        while state() is not None and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert cancelled.running
        assert state() is None
    finally:
        services.meeting.set()


def test_who_waits_at_the_store_is_told_that_it_was_cancelled():
    services = InMemory()
    found = ended(prepare(services))
    assert not services.is_cancelled()
    found.cancel()
    assert services.is_cancelled()


class SlowToConnect(InMemory):
    """A store that is dead, and is found so late."""

    def connect_store(self, address, epoch, is_cancelled):
        self.asked.append("connect_store")
        assert self.meeting.wait(10)
        raise RuntimeError("nothing answers")


def test_the_next_one_begins_once_a_cancelled_one_has_ended_for_that_cuts_what_is_new():
    slow, services = SlowToConnect(), InMemory()
    slow.meeting.clear()
    first = prepare(slow)
    while slow.asked[-1:] != ["connect_store"]:
        time.sleep(0.001)
    first.cancel()
    held = held_by(OLD, "a", 1)
    second = Preparation(MODEL, DIRECTIVE, "tiny-a-0", 1, held, services, StillState(), first)
    assert second.running
    assert services.asked == []
    slow.meeting.set()
    assert ended(second).result is not None
    assert not first.running


@pytest.mark.parametrize("take", [False, True], ids=["kept", "taken"])
def test_a_preparation_that_is_in_use_frees_nothing(take):
    services = InMemory()
    found = ended(prepare(services))
    if take:
        assert found.take() is not None
        assert found.result is None
        found.cancel()
    assert services.given_up() == (False, set(), [], [])


@pytest.mark.parametrize(
    "effect", ["connect_store", "form_transport", "form_world", "build_engine"]
)
def test_a_failure_is_an_error_and_no_result(effect):
    fault = TransferFailed("nobody came")
    services = InMemory(**{effect: fault})
    found = ended(prepare(services))
    assert (found.error, found.result) == (fault, None)
    if effect != "connect_store":
        assert services.store.is_closed


class GoneWhileConnecting(InMemory):
    """A transport of which a peer goes in the middle, as `GlooTransport.form` tells it."""

    def form_transport(self, store, prefix, rank, size):
        try:
            raise RuntimeError("Connection closed by peer")
        except RuntimeError:
            raise TransferFailed("a peer went") from None


def test_a_failure_with_another_one_behind_it_keeps_nothing_alive(monkeypatch):
    # Else pytest would keep what is logged, and so the frames of the error.
    monkeypatch.setattr(logging.getLogger("worker.rank.preparation"), "propagate", False)
    services = GoneWhileConnecting()
    found = ended(prepare(services))
    assert str(found.error) == "a peer went"
    gc.disable()
    try:
        store = weakref.ref(services.store)
        del services, found
        deadline_s = time.monotonic() + 10  # the store's watcher sees that it is closed
        while store() is not None and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert store() is None
    finally:
        gc.enable()


def test_a_rank_that_is_no_member_is_told_so_and_meets_nobody():
    services = InMemory()
    found = ended(prepare(services, slot=3))
    assert str(found.error) == "rank (tiny-a-0, 3) is no member of epoch 2"
    assert services.asked == ["prepare"]


class RealGroups(InMemory):
    """Groups, transport and store of real processes; only the engine is none."""

    def __init__(self, store, **faults):
        super().__init__(**faults)
        self._real = store

    def connect_store(self, address, epoch, is_cancelled):
        self.store = Client(self._real.clone(), is_cancelled)
        return self.store

    def form_transport(self, store, prefix, rank, size):
        return GlooTransport.form(store, prefix, rank, size, 60.0)

    def form_world(self, store, epoch, rank, model, planned):
        store.set(f"{rank} has met", "yes")
        store.wait([f"{other} has met" for other in range(planned.gpus)])
        self._do("form_world", epoch, rank, planned)
        sets = rank_sets(model, planned)
        return World(store, epoch, rank, planned.gpus, sets, self.activity, device=CPU)


def claims(rank, store):
    """Prepared, given up, and failed beside an old world that trains; two ranks."""
    held = held_by(OLD, "a", rank)
    old = World(store, 1, rank, 2, ((0, 1),), Activity(), device=CPU)

    def train(steps):
        tensor = torch.tensor([1.0])
        for _ in range(steps):
            tensor.fill_(1.0)
            old.all_reduce_(tensor)
        return tensor.item()

    def prepared(services, epoch):
        directive = DIRECTIVE.model_copy(update={"epoch": epoch})
        return Preparation(MODEL, directive, "tiny-a-0", rank, held, services, StillState())

    before, found = connections(), {}
    first = prepared(RealGroups(store), 2)
    found["trained"] = train(STEPS)
    result = ended(first).result
    tensor = torch.tensor([float(rank)])
    result.successor.world.all_reduce_(tensor)
    result.transport.all_reduce_(tensor, "sum")
    found["sum"] = tensor.item()
    found["own"] = bool(result.connections) and result.connections < connections() - before
    del result, tensor
    train(1)
    first.cancel()
    del first
    found["left"] = _left_over(before)
    train(1)

    fault = {"form_world": TransferFailed("no room")} if rank == 1 else {}
    second = prepared(RealGroups(store, **fault), 3)
    if rank == 1:
        found["error"] = str(ended(second).error)
        store.set("failed", "yes")
    else:
        store.wait(["failed"])
        found["waits"] = second.running  # until its agent hears of the failure
        second.cancel()
        found["error"] = type(ended(second).error).__name__
    del second
    found["left after a failure"] = _left_over(before)
    found["trained after"] = train(STEPS)
    return found


def _left_over(before):
    """Connections that did not close within some seconds; gloo closes them in threads."""
    deadline_s = time.monotonic() + 5
    while connections() - before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return len(connections() - before)


@pytest.mark.slow
def test_beside_a_world_that_trains_groups_are_formed_and_given_up_and_nothing_is_left():
    first, second = run_ranks("tests.unit.worker.rank.test_preparation:claims", 2)
    for found in (first, second):
        assert (found["trained"], found["trained after"]) == (2.0, 2.0)
        assert (found["sum"], found["own"]) == (2.0, True)
        assert (found["left"], found["left after a failure"]) == (0, 0)
    assert second["error"] == "no room"
    assert first["waits"]
    assert first["error"] in ("RendezvousFailed", "TransferFailed")  # by where the other one failed
