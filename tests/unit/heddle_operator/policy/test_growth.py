"""Steps that grow: at once in peace, after a move where there is one, and with pauses."""

from __future__ import annotations

import math

import pytest

from heddle_operator.state.actions import DeletePod
from tests.fakes.operator import FakeOperator, a_cluster, a_job


def running(*nodes):
    job = a_job(minGainPercent=0)
    operator = FakeOperator(job, a_cluster(job, *nodes))
    operator.settle()
    return operator, operator.cluster


def grow(operator, steps=2000):
    spec = operator.job.spec.model_copy(update={"steps": steps})
    operator.job = operator.job.model_copy(update={"spec": spec})


def epochs(cluster):
    return [(record.reason, record.outcome, record.steps) for record in cluster.records.all]


def test_the_live_plan_is_adopted_once_more_with_the_steps_that_are_wanted():
    operator, cluster = running("a", "b")
    grow(operator)
    operator.settle()
    assert epochs(cluster) == [("start", "live", 1000), ("join", "live", 2000)]


@pytest.mark.parametrize("notice_s", [30.0, math.inf])
def test_a_node_with_a_notice_is_left_first_and_the_steps_come_with_that_move(notice_s):
    operator, cluster = running("a", "b")
    grow(operator)
    cluster.drain("b", notice_s)
    operator.run(lambda d: any(isinstance(a, DeletePod) for a in d.actions))
    assert epochs(cluster) == [("start", "live", 1000), ("drain", "live", 2000)]


def test_attempts_that_break_are_repeated_with_pauses():
    operator, cluster = running("a", "b")
    grow(operator)
    began_s = cluster.now
    while cluster.now < began_s + 20.0:
        operator.reconcile()
        pending = cluster.records.all[-1]
        if pending.outcome == "open" and pending.seal is not None:
            cluster.restart_store(pending.seal.store.split(":")[0])
        cluster.tick()
    assert 3 <= len(epochs(cluster)) - 1 <= 8


def test_a_plan_that_failed_on_its_nodes_waits_before_it_grows():
    operator, cluster = running("a", "b")
    grow(operator)
    operator.reconcile()
    cluster.failing["a"] = (
        cluster.agents["tiny-a-0"]
        .ranks[0]
        .model_copy(update={"error": "no memory for a second engine", "error_kind": "device"})
    )
    began_s = cluster.now
    while cluster.now < began_s + 60.0:
        operator.reconcile()
        cluster.tick()
    assert epochs(cluster)[1:] == [("join", "aborted", 2000)]
