"""rank/rank.py: the old world is freed at the flip and not before; an aborted change leaves it.

The same holds for its settings: what a change brings along begins with the flip.
"""

from __future__ import annotations

import contextlib
import time

import pytest
from torch.distributed import HashStore

from planner.plans.ranks import RankMap
from tests.simulated_device.silent_device import SilentDevice
from tests.unit.worker.changes import MODEL, change, plan, pod_of, shards_of, whole_state
from tests.unit.worker.preparing import InMemory, ended
from tests.unit.worker.rank.test_mailbox import pair
from tests.unit.worker.switches import AT_7, Watched, members_of
from worker.contract import Resume
from worker.control.channel import Channel
from worker.control.messages import FROM_PROCESS, Reported, Stepped
from worker.control.store_client import StoreClient
from worker.device.broken import Broken
from worker.device.device import CPU
from worker.engine.seam import Progress, StepResult
from worker.errors import FabricHangs
from worker.rank.rank import Rank
from worker.rank.rank_state import Layout

OLD = plan("1x2")
LIMIT_S, STEPS = 10.0, 10


class OldWorld:
    """A world whose wires belong to a device: `phases` are those at which it still stands."""

    def __init__(self):
        self.phases = []
        self.is_left = False
        self.broken = Broken()

    def break_(self):
        self.broken.set("gone")

    def leave(self):
        self.is_left = True


class Stepping:
    """An engine that counts steps, and agrees on a switch in each."""

    def __init__(self, step):
        self.progress = Progress(step=step)

    def train_step(self, ready_epoch):
        self.progress.result = self.met(ready_epoch)
        self.progress.step += 1
        return self.progress.result

    def met(self, agreed_epoch):
        step, now_s = self.progress.step, time.monotonic()
        return StepResult(
            step=step, loss=2.0, gradient_norm=1.0, agreed_epoch=agreed_epoch, met_s=now_s
        )

    def overruns(self):
        return 0


class Cut(Stepping):
    """An engine whose world breaks in each step: before all met, behind that, or once it counts."""

    def __init__(self, step, where):
        super().__init__(step)
        self.where = where
        self.progress.result = self.met(None) if step else None  # as if of the step before

    def train_step(self, ready_epoch):
        if self.where != "before":
            self.progress.result = self.met(ready_epoch)
        self.progress.step += self.where == "counted"
        raise ConnectionError("a peer is gone")

    def apply(self, gradient_norm):
        self.progress.step += 1


class Refusing(InMemory):
    """Services of a rank whose every switch fails as it begins."""

    def on_phase(self, name):
        super().on_phase(name)
        if name == "drain":
            raise ConnectionError("nobody came")


def directive(steps=STEPS):
    """To the same plan once more, of the tests' model."""
    found = change(OLD, OLD)
    training = found.training.model_copy(update={"shape": MODEL.to_json(), "steps": steps})
    return found.model_copy(update={"training": training})


@pytest.fixture
def changed():
    """(the old world, phases, whether it stood at each) of a change with that outcome."""

    def changed(*, is_aborted):
        old, stood = OldWorld(), []
        services = Watched(lambda name: stood.append((name, not old.is_left)))
        (member,) = members_of(
            directive(), OLD, verify="Moved", stores=[StoreClient(HashStore(), lambda: False)]
        )
        prepared = member.switch.prepared
        with pair() as (agent, end):
            rank = Rank(Channel(end), "a", 0, services)
            rank._spec, rank._world, rank._phase = prepared.move.directive.training, old, "training"
            seat = prepared.move.seat
            rank._state.layout = Layout(1, (seat,), seat, member.shards)
            rank._state.progress = AT_7
            if is_aborted:
                rank._change.call_off(prepared.move.directive.epoch)
                prepared.store.set(f"epoch{prepared.move.directive.epoch}/outcome", "abort")
            rank._switch(prepared)
            agent.close()
            with pytest.raises(SystemExit):  # its mailbox has ended
                rank._messages.next(LIMIT_S)
        return old, stood

    return changed


def test_the_old_world_stands_until_the_flip_and_is_freed_then(changed):
    old, stood = changed(is_aborted=False)
    assert stood[-1] == ("flip", True)
    assert all(is_there for _, is_there in stood)
    assert old.is_left


def test_a_change_that_is_called_off_leaves_the_old_world(changed):
    old, stood = changed(is_aborted=True)
    assert "flip" not in dict(stood)
    assert not old.is_left


@pytest.fixture
def agents():
    """{rank: the agent's end of its channel}."""
    return {}


@pytest.fixture
def training(agents):
    """Makes a rank of epoch 1 that stands after so many of its steps."""
    seat = RankMap.of(OLD).seats[0]
    with contextlib.ExitStack() as stack:

        def training(step):
            agent, end = stack.enter_context(pair())
            rank = Rank(Channel(end), pod_of("a"), 0, Refusing())
            rank._spec, rank._world, rank._phase = directive().training, OldWorld(), "training"
            rank._state.layout = Layout(1, (seat,), seat, shards_of(seat, whole_state()))
            rank._state.engine = Stepping(step)
            agents[rank] = agent
            return rank

        yield training
        for rank, agent in agents.items():
            agent.close()
            with pytest.raises(SystemExit):  # its mailbox has ended
                rank._messages.next(LIMIT_S)


@pytest.mark.parametrize(
    ("is_broken", "error", "kind"),
    [
        (True, KeyError("garbage"), "lost peer"),
        (False, KeyError("a bug"), "other"),
        (True, MemoryError(), "device"),
    ],
)
def test_what_comes_of_the_numbers_of_a_broken_world_is_no_fault_of_this_rank(
    training, is_broken, error, kind
):
    rank = training(3)
    if is_broken:
        rank._world.broken.set("rank 1 is gone")
    rank._halt(error)
    assert (rank._trouble.kind, rank._phase) == (kind, "halted")


def test_a_joiner_whose_first_step_is_cut_stands_still_from_the_start_of_that(training):
    """Else nobody could tell for how long the job stood still, where it is the only survivor."""
    rank = training(3)
    rank._state.engine = Cut(3, "met")
    began_s = time.monotonic()
    rank._train()
    assert began_s <= rank._stopped_s <= rank._halted_s
    rank._stopped_s = began_s  # of one that has trained a step
    rank._phase = "training"
    rank._train()
    assert rank._stopped_s == began_s


def prepare(rank, steps):
    """Let a rank prepare a change to so many steps, and be told to switch."""
    asked = directive(steps)
    rank._handle(asked)
    ended(rank._change._preparation)
    rank._poll_preparation()
    assert rank._trouble.sentence is None
    rank._handle(asked.model_copy(update={"phase": "switch"}))


@pytest.mark.parametrize("how", ["prepare", "switch", "abort"])
def test_a_change_leaves_the_steps_of_the_running_epoch(training, how):
    """All ranks end it together, whichever of them have heard of the change."""
    rank = training(STEPS)
    prepare(rank, STEPS + 5)
    if how == "abort":
        rank._handle(directive(STEPS + 5).model_copy(update={"phase": "abort"}))
    rank._train()
    assert rank._phase == "done"
    assert rank._state.engine.progress.step == STEPS


@pytest.mark.parametrize(
    ("step", "steps", "switches"),
    [(STEPS - 1, STEPS + 5, True), (STEPS - 1, STEPS, False), (STEPS - 2, STEPS - 1, True)],
)
def test_ranks_that_agree_switch_where_either_epoch_has_steps_left(training, step, steps, switches):
    rank = training(step)
    prepare(rank, steps)
    rank._train()
    assert ("drain" in rank._services.asked) is switches
    assert rank._phase == "training"


@pytest.mark.parametrize("how", ["move", "move called off", "preparation", "called off"])
def test_a_device_that_a_failed_change_left_silent_halts_its_rank_before_the_next_step(
    training, agents, how
):
    """Else that step would await it for half an hour."""
    rank, asked = training(3), directive(STEPS + 5)
    device = rank._services.device = SilentDevice(CPU, 0.01)

    def drain(name):
        if name == "drain":
            device.fall_silent()
            if how == "move called off":
                rank._change.call_off(asked.epoch)
            raise FabricHangs("the first operation hangs")

    rank._services.on_phase = drain
    if how == "preparation":
        rank._services._faults = {"form_world": FabricHangs("the network hangs")}
        rank._handle(asked)
        ended(rank._change._preparation)
    else:
        prepare(rank, STEPS + 5)
    if how in ("preparation", "called off"):
        device.fall_silent()
    hear = {
        "preparation": rank._poll_preparation,
        "called off": lambda: rank._handle(asked.model_copy(update={"phase": "abort"})),
    }
    with pytest.raises(SystemExit) as end:
        hear.get(how, rank._train)()
    assert (rank._phase, rank._trouble.kind, end.value.code) == ("halted", "device", 1)
    if how in ("move", "preparation"):  # why the change failed was told before
        assert "fabric" in {report.error_kind for report in reports_told(agents[rank])}


def test_a_device_that_is_done_lets_the_old_plan_train_on(training):
    rank = training(3)
    rank._services.device = SilentDevice(CPU, 0.01)
    prepare(rank, STEPS + 5)
    rank._train()
    assert (rank._phase, rank._change.failed_epoch) == ("training", 2)


def told(agent):
    """The messages that came to an agent, whose rank sends in the thread of the test."""
    return [FROM_PROCESS.validate_json(line) for line in agent.recv(1 << 20).splitlines()]


def steps_told(agent):
    return [message.record for message in told(agent) if isinstance(message, Stepped)]


def reports_told(agent):
    return [message.rank for message in told(agent) if isinstance(message, Reported)]


@pytest.mark.parametrize(
    ("where", "is_told"), [("before", False), ("met", True), ("counted", True)]
)
def test_a_step_that_a_broken_world_cut_is_told_once_its_update_is_there(
    training, agents, where, is_told
):
    """Nobody may tell it before: it could be trained again."""
    rank = training(3)
    rank._state.engine = Cut(3, where)
    rank._state.progress = rank._state.engine.progress
    began_s = time.monotonic()
    rank._train()
    assert rank._phase == "halted"
    for epoch in (5, 6):  # a second directive tells it no second time
        update = {"epoch": epoch, "resume": Resume(step=4, gradient_norm=1.0)}
        rank._handle(directive().model_copy(update=update))
        ended(rank._change._preparation)
    steps = steps_told(agents[rank])
    assert [(record.epoch, record.step, record.loss) for record in steps] == [(1, 3, 2.0)] * is_told
    assert all(began_s <= record.start_s <= record.end_s for record in steps)
