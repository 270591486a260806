"""Where a plan failed on its nodes, another one is tried."""

from __future__ import annotations

from tests.fakes.operator import running_on
from tests.unit.heddle_operator.rules.test_failures import failing, outcomes


def test_another_plan_may_be_tried_at_once():
    operator, cluster = running_on("a")
    failing(cluster, "b", "other", "no")
    for node in "bc":
        cluster.add_node(node)
    operator.settle()
    assert outcomes(cluster)[1:] == [(2, "join", "aborted"), (3, "join", "live")]
    assert cluster.records.all[-1].plan.nodes == ("a", "c")


def test_a_drain_is_tried_again_with_another_plan_before_the_notice_ends():
    operator, cluster = running_on("a", "b", "c")
    failing(cluster, "b")
    cluster.drain("a", 120)
    notice_s = cluster.nodes["a"].leaving_at_s
    operator.settle()
    assert cluster.now < notice_s
    assert outcomes(cluster)[1:] == [(2, "drain", "aborted"), (3, "drain", "live")]
    assert cluster.records.all[-1].plan.nodes == ("c",)


def test_a_drain_that_has_one_plan_only_is_tried_with_it_again():
    operator, cluster = running_on("a", "b")
    failing(cluster, "b")
    cluster.drain("a")
    operator.run(lambda _: len(cluster.records.all) >= 3)
    cluster.failing.clear()
    operator.settle()
    assert outcomes(cluster)[-1][1:] == ("drain", "live")
