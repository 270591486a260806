"""What is measured reaches the picture of the nodes, and through it the composition of a plan."""

from __future__ import annotations

from heddle_operator.controller.node_speeds import NodeSpeeds
from heddle_operator.rules.candidates import usable_nodes
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from heddle_operator.state.speeds.node_speed import BELIEVED_S
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of


def a_slow_node(speed):
    """A job on nodes a, b and c, of which c has this speed, and what is seen after two minutes."""
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, *"abc"))
    operator.settle()
    cluster, speeds = operator.cluster, NodeSpeeds(job.workload.model)
    cluster.speeds["c"] = lambda: speed
    for _ in range(40):
        cluster.tick(BELIEVED_S / 20)
        seen = speeds.seen(cluster.snapshot(), cluster.now)
    return job, cluster, seen


def test_a_slow_node_is_slow_in_the_composition_that_a_plan_is_asked_for():
    job, cluster, seen = a_slow_node(0.5)
    where = situation(seen, cluster.now, Settings())
    found = usable_nodes(view_of(job, seen, cluster.now, situation=where), frozenset())
    assert {node.name: node.speed_factor for node in found.nodes} == {"a": 1.0, "b": 1.0, "c": 0.5}


def test_where_all_are_alike_the_picture_stays_as_it_was():
    _, cluster, seen = a_slow_node(1.0)
    assert seen == cluster.snapshot()


def test_a_job_that_does_not_train_has_nothing_measured():
    job = a_job()
    cluster = a_cluster(job, "a")
    seen = NodeSpeeds(job.workload.model).seen(cluster.snapshot(), 0.0)
    assert seen == cluster.snapshot()
