"""worker/agent/directives.py: what an agent still needs of what it was told."""

from __future__ import annotations

from tests.unit.worker.changes import change, plan
from worker.agent.directives import Directives
from worker.contract import RankReport

OLD, NEW = plan("1x1+1x1"), plan("1x2")


def report(epoch, rank=0, phase="training"):
    return RankReport(slot=0, pid=1, started_s=0.0, phase=phase, epoch=epoch, rank=rank)


def told(*epochs):
    found = Directives("tiny-a-0")
    for epoch, new in epochs:
        found.add(change(None, new, epoch=epoch))
    return found


def test_a_rank_is_named_by_the_plan_that_it_trains_not_by_the_newest():
    found = told((1, OLD), (2, NEW))
    assert found.newest.epoch == 2
    assert found.of(report(1)).epoch == 1
    assert found.seat(report(1, rank=1)).stage == 1


def test_nothing_is_known_of_a_rank_that_holds_nothing_or_leaves():
    found = told((1, OLD))
    assert found.of(None) is found.of(report(None)) is None
    assert found.seat(report(1, rank=None)) is None


def test_seats_are_those_of_the_newest_epoch_that_was_reached():
    found = told((1, OLD), (2, NEW))
    assert found.seated_slots == frozenset()
    found.heard(report(1))
    assert found.seated_slots == {0, 1}
    found.heard(report(2))
    assert found.seated_slots == {0}


def test_what_came_before_the_newest_epoch_is_dropped():
    found = told((1, OLD), (2, NEW))
    found.heard(report(2))
    assert found.of(report(1)) is None
    found.heard(report(1))  # a rank that lags behind changes nothing
    assert found.seated_slots == {0}
