"""rank/rank.py: the old world is freed at the flip and not before; an aborted change leaves it."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from tests.unit.worker.changes import MODEL, change, plan
from tests.unit.worker.rank.test_mailbox import pair
from tests.unit.worker.switches import AT_7, Watched, members_of
from worker.control.channel import Channel
from worker.control.store_client import StoreClient
from worker.rank.rank import Rank
from worker.rank.rank_state import Layout

OLD = plan("1x2")
LIMIT_S = 10.0


class OldWorld:
    """A world whose wires belong to a device: `phases` are those at which it still stands."""

    def __init__(self):
        self.phases = []
        self.is_left = False

    def leave(self):
        self.is_left = True


class Changing(Rank):
    """A rank in a change of the tests' model."""

    def _model(self):
        return MODEL


@pytest.fixture
def changed():
    """(the old world, phases, whether it stood at each) of a change with that outcome."""

    def changed(*, is_aborted):
        old, stood = OldWorld(), []
        services = Watched(lambda name: stood.append((name, not old.is_left)))
        (member,) = members_of(
            change(OLD, OLD), OLD, verify="Moved", stores=[StoreClient(HashStore(), lambda: False)]
        )
        prepared = member.switch.prepared
        with pair() as (agent, end):
            rank = Changing(Channel(end), "a", 0, services)
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
