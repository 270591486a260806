"""A job on GPUs of the wrong type moves once the right ones are free, within one cooldown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.controller.arbiter import PriorityArbiter
from tests.fakes.operator import FakeOperator, a_cluster, a_job
from tests.fakes.shared import SharedNodes

TICK_S = 0.5
CHANGE_S = 10.0  # for a search, a pod and the change itself, of which each takes ticks
COOLDOWNS_S = (0, 5, 60)


def trains_on(cluster):
    """The nodes of the live plan."""
    records = cluster.records.all
    return records[-1].plan.nodes if records and records[-1].outcome == "live" else ()


def until(operator, node, within_s):
    """Seconds until the job trains on that node."""
    cluster = operator.cluster
    began_s = cluster.now
    while trains_on(cluster) != (node,):
        operator.reconcile()
        cluster.tick(TICK_S)
        assert cluster.now - began_s <= within_s, operator.decision
    return cluster.now - began_s


@given(
    cooldown=st.sampled_from(COOLDOWNS_S),
    waits=st.floats(0, 80),
    name=st.sampled_from(("0", "z")),  # before and after those of the other nodes
)
def test_a_job_moves_to_a_faster_type_that_joins_once_its_cooldown_is_over(cooldown, waits, name):
    job = a_job(maxGPUs=1, cooldownSeconds=cooldown)
    cluster = a_cluster(job)
    operator = FakeOperator(job, cluster)
    cluster.add_node("m", "demo-slow")
    until(operator, "m", CHANGE_S)
    cluster.add_node("n", "demo-fast")
    until(operator, "n", CHANGE_S)  # no change was before it
    cluster.drain("n")
    until(operator, "m", CHANGE_S)
    changed_s = cluster.now
    while cluster.now < changed_s + waits:
        operator.reconcile()
        cluster.tick(TICK_S)
    cluster.add_node(name, "demo-fast")
    left_s = max(0.0, changed_s + cooldown - cluster.now)
    took_s = until(operator, name, left_s + CHANGE_S)
    assert took_s >= left_s - CHANGE_S


@pytest.mark.parametrize("cooldown", COOLDOWNS_S)
@pytest.mark.parametrize("seed", range(3))
def test_a_job_moves_to_a_faster_type_that_another_job_gives_free(cooldown, seed):
    def named(name, steps):
        job = a_job(maxGPUs=1, cooldownSeconds=cooldown)
        metadata = job.metadata.model_copy(update={"name": name, "uid": name})
        spec = job.spec.model_copy(update={"steps": steps})
        return job.model_copy(update={"metadata": metadata, "spec": spec})

    types = {"slow": "demo-slow"}
    around = SharedNodes(
        [named("first", 200)], {"fast": 1}, seed, arbiter=PriorityArbiter(), types=types
    )
    first = around.clusters[0]
    while trains_on(first) != ("fast",):
        around.advance(TICK_S)
    around.add_nodes({"slow": 1})
    around.add_job(named("second", 1_000_000))
    second = around.clusters[1]
    ended_s = None
    while trains_on(second) != ("fast",):
        around.advance(TICK_S)
        if ended_s is None and around.operators[0].decision.phase == "Complete":
            assert trains_on(second) == ("slow",)
            ended_s = around.now
        assert around.now <= (300.0 if ended_s is None else ended_s + cooldown + CHANGE_S)
    assert ended_s is not None
