"""The arbiter wakes the jobs whose allowance another one has changed, and no other."""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.controller.arbiter import PriorityArbiter
from heddle_operator.rules.arbitration.demand import Demand

NODES = (("a", 2), ("b", 2))
LOW = Demand(job="low", priority=0, since="", least=2, most=4, weight=1.0, nodes=NODES, pods=NODES)
HIGH = Demand(job="high", priority=100, since="", least=2, most=4, weight=1.0, nodes=NODES)


def test_a_job_is_woken_when_another_one_takes_or_goes():
    woken = []
    arbiter = PriorityArbiter(woken.append)
    assert sum(arbiter.allow(LOW).values()) == 4
    assert sum(arbiter.allow(HIGH).values()) == 2
    assert woken == ["low"]
    arbiter.allow(HIGH)
    assert sum(arbiter.allow(LOW).values()) == 2
    assert woken == ["low"]
    arbiter.forget("high")
    assert woken == ["low", "low"]
    assert list(arbiter.jobs()) == ["low"]


def test_a_job_learns_who_was_dealt_gpus_that_it_could_use():
    arbiter = PriorityArbiter()
    others = [
        replace(HIGH, job="many", name="ml/many", nodes=(("a", 2),)),
        replace(HIGH, job="one", name="ml/one", least=1, most=1, nodes=(("b", 2),)),
        replace(HIGH, job="far", name="ml/far", nodes=(("c", 2),)),
    ]
    for demand in others:
        arbiter.allow(demand)
    waits = replace(LOW, pods=())
    assert sum(arbiter.allow(waits).values()) < waits.least
    assert arbiter.dealt(waits) == (("ml/many", 2), ("ml/one", 1))


def test_a_job_that_gives_back_keeps_what_it_is_allowed():
    arbiter = PriorityArbiter()
    arbiter.allow(LOW)
    arbiter.allow(HIGH)
    left = arbiter.allow(replace(LOW, pods=NODES[:1]))
    assert sum(left.values()) == 2
