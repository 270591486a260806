"""The reports of a switch come one by one, in any order; none of them looks like a loss."""

from __future__ import annotations

import itertools

import pytest

from tests.fakes.operator import running_on

LEAVER = "tiny-a-0"
ORDERS = [tuple(f"tiny-{node}-0" for node in order) for order in itertools.permutations("abc")]


def at_the_switch(change):
    """Every member is prepared and was told to switch, and nobody has moved yet."""
    operator, cluster = running_on("a", "b", *("c" if change == "drain" else ""), minGainPercent=0)
    if change == "drain":
        cluster.drain("a")
    else:
        cluster.add_node("c")
    for _ in range(20):
        operator.reconcile()
        if cluster._ready_to_switch() is not None:
            return operator
        cluster.tick()
    raise AssertionError(operator.decision.message)


def hear_one_by_one(operator, order, change):
    """The operator sees one agent after the other as it is now, and looks twice at each."""
    cluster = operator.cluster
    for pod in order:
        cluster.frozen.discard(pod)
        for _ in range(2):
            decision = operator.reconcile()
            assert decision.phase in ("Switching", "Running"), decision.message
    operator.settle()
    told = [(record.reason, record.outcome) for record in cluster.records.all]
    assert told == [("start", "live"), (change, "live")]
    assert cluster.halts == []


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_who_hears_of_a_join_in_any_order_takes_nobody_for_lost(order):
    operator = at_the_switch("join")
    operator.cluster.frozen = set(operator.cluster.agents)
    operator.cluster.switch(operator.cluster._ready_to_switch())
    hear_one_by_one(operator, order, "join")


@pytest.mark.parametrize("leaver", ["is leaving", "has exited"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_who_hears_of_a_drain_in_any_order_takes_nobody_for_lost(order, leaver):
    operator = at_the_switch("drain")
    cluster = operator.cluster
    cluster.frozen = set(cluster.agents)
    cluster.switch(cluster._ready_to_switch())
    if leaver == "has exited":
        cluster._leave()
    hear_one_by_one(operator, order, "drain")


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_leaver_whose_pod_ends_before_the_others_tell_of_the_switch_is_not_lost(is_deleted):
    """One that was evicted ends by itself, as soon as its state has moved."""
    operator = at_the_switch("drain")
    cluster = operator.cluster
    cluster.snapshot()  # its directive has been heard of before
    cluster.frozen = set(cluster.agents)
    cluster.switch(cluster._ready_to_switch())
    cluster._leave()
    cluster.kill_pod(LEAVER)
    if is_deleted:
        del cluster.pods[LEAVER]
    hear_one_by_one(operator, ORDERS[0], "drain")
