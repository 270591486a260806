"""Pods go when nobody needs them, and end with the job."""

from __future__ import annotations

import dataclasses

from heddle_operator.epochs.decide import decide
from heddle_operator.epochs.release import ASK_AGAIN_S, end_pods, stuck_pods
from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    EndPod,
    RecordEvent,
    RelatedObject,
)
from heddle_operator.state.settings import Settings
from tests.fakes.operator import (
    a_job,
    running,
    running_on,
    view_of,
    waiting,
)

LIMITS = Settings()


def deleted(decision):
    return [action.name for action in decision.actions if isinstance(action, DeletePod)]


def ended_at(cluster, later=0.0, **pods):
    """How the pods of a job end that ended just now."""
    cluster.do(CloseEpoch(epoch=1, outcome="complete"))
    observed = cluster.snapshot()
    changed = tuple(dataclasses.replace(p, **pods.get(p.node, {})) for p in observed.pods)
    observed = dataclasses.replace(observed, pods=changed)
    return end_pods(
        view_of(a_job(), observed, cluster.now + later, settings=LIMITS), cluster.records.all[-1]
    )


def test_every_pod_of_an_ended_job_is_told_to_end_and_stays():
    _, cluster = running_on("a", "b")
    assert ended_at(cluster)[0] == (EndPod("tiny-a-0"), EndPod("tiny-b-0"))


def test_a_pod_that_never_started_has_no_log_to_keep():
    _, cluster = running_on("a", "b")
    actions, _ = ended_at(cluster, a={"phase": "pending"})
    assert [(type(action), action.name) for action in actions] == [
        (DeletePod, "tiny-a-0"),
        (EndPod, "tiny-b-0"),
    ]


def test_pods_that_have_ended_or_are_being_deleted_are_let_be():
    _, cluster = running_on("a", "b")
    assert ended_at(cluster, a={"phase": "ended"}, b={"deleting": True}) == ((), None)


def test_a_pod_of_an_ended_job_whose_sidecar_runs_on_is_deleted_in_time():
    _, cluster = running_on("a")
    lingers = {"phase": "ended", "lingers": True}
    assert ended_at(cluster, a=lingers) == ((), ASK_AGAIN_S)
    (action,), _ = ended_at(cluster, later=LIMITS.end_timeout_s, a=lingers)
    assert isinstance(action, DeletePod)


def test_a_silent_agent_is_waited_for_and_then_its_pod_is_deleted():
    _, cluster = running_on("a")
    cluster.unreachable["tiny-a-0"] = cluster.now
    assert ended_at(cluster) == ((), ASK_AGAIN_S)
    (action,), again = ended_at(cluster, later=LIMITS.end_timeout_s)
    assert isinstance(action, DeletePod)
    assert again is None


def test_a_failed_pod_stays_until_it_is_clear_that_the_job_goes_on():
    operator, cluster = running_on("a", "b", "c")
    cluster.kill_pod("tiny-b-0")
    assert deleted(operator.reconcile()) == []
    while len(cluster.records.all) == 1:
        cluster.tick()
        assert deleted(operator.reconcile()) == []
    assert deleted(operator.reconcile()) == ["tiny-b-0"]


def test_a_failed_pod_of_a_job_that_lost_its_state_can_still_be_read():
    operator = running("a", "b", as_pipeline=True)
    operator.cluster.kill_pod("tiny-b-0")
    assert operator.settle().phase == "Failed"
    assert {p.name: p.phase for p in operator.cluster.pods.values()} == {
        "tiny-a-0": "ended",
        "tiny-b-0": "ended",
    }


def test_pods_that_cannot_start_go_once_no_open_epoch_waits_for_them():
    operator, cluster = running_on("a")
    cluster.add_node("b")
    operator.run(lambda decision: "tiny-b-0" in cluster.pods)
    stuck = dataclasses.replace(cluster.pods["tiny-b-0"], phase="pending", problem="no such image")
    observed = dataclasses.replace(cluster.snapshot(), pods=(stuck,))
    assert stuck_pods(observed) == ()
    cluster.do(CloseEpoch(epoch=2, outcome="aborted"))
    observed = dataclasses.replace(cluster.snapshot(), pods=(stuck,))
    assert [action.name for action in stuck_pods(observed)] == ["tiny-b-0"]


def test_idle_pods_are_released_after_the_cooldown_and_at_once_on_a_leaving_node():
    operator, cluster = running_on("a", cooldownSeconds=20)
    cluster.add_node("slow", "demo-slow")
    cluster.do(CreatePod("tiny-slow-0", "slow", 0, 1))
    operator.settle()

    def look(later):
        return decide(
            view_of(operator.job, cluster.snapshot(), cluster.now + later, settings=LIMITS)
        )

    assert deleted(look(0.0)) == []
    assert look(0.0).look_again_s <= 20
    assert deleted(look(20.0)) == ["tiny-slow-0"]
    cluster.drain("slow")
    assert deleted(look(0.0)) == ["tiny-slow-0"]


def test_a_pod_that_has_yet_to_start_is_not_idle():
    operator, cluster = running_on("a", cooldownSeconds=20)
    cluster.add_node("slow", "demo-slow")
    cluster.pulls_until_s["slow"] = cluster.now + 300
    cluster.do(CreatePod("tiny-slow-0", "slow", 0, 1))

    def look(later):
        return deleted(
            decide(view_of(operator.job, cluster.snapshot(), cluster.now + later, settings=LIMITS))
        )

    assert look(LIMITS.pod_timeout_s - 1) == []
    assert look(LIMITS.pod_timeout_s) == ["tiny-slow-0"]


def test_a_silent_pod_that_takes_part_in_nothing_is_deleted_and_one_that_trains_is_not():
    operator, cluster = running_on("a", "b", cooldownSeconds=1000)
    cluster.add_node("slow", "demo-slow")
    cluster.do(CreatePod("tiny-slow-0", "slow", 0, 1))
    cluster.tick()
    cluster.snapshot()
    cluster.unreachable = {"tiny-slow-0": cluster.now - 10, "tiny-a-0": cluster.now - 10}
    gone = [a for a in operator.reconcile().actions if isinstance(a, DeletePod)]
    assert gone == [DeletePod("tiny-slow-0", "it does not answer")]


def test_a_job_that_cannot_start_gives_all_its_pods_back_and_one_that_plans_keeps_them():
    operator = waiting("a", "b", minGPUs=2)
    cluster = operator.cluster
    operator.run(lambda _: len(cluster.pods) == 2)
    cluster.kill_node("b")
    operator.run(lambda _: cluster.records.all[-1].outcome == "aborted")
    decision = operator.reconcile()
    assert "1 GPU is usable, minGPUs is 2" in decision.message
    assert deleted(decision) == ["tiny-a-0"]
    cluster.add_node("b")
    operator.run(lambda _: len(cluster.pods) == 2)
    cluster.nodes["b"] = dataclasses.replace(cluster.nodes["b"], leaving_at_s=1e9)
    cluster.add_node("c")
    operator.run(lambda d: d.phase == "Planning")
    assert deleted(operator.decision) == []


def leaving(operator, **changes):
    """What is told of nodes that leave."""
    observed = dataclasses.replace(operator.cluster.snapshot(), **changes)
    actions = decide(view_of(operator.job, observed, operator.cluster.now)).actions
    events = [action for action in actions if isinstance(action, RecordEvent)]
    return [(e.message, e.related) for e in events if e.reason == "NodeLeaving"]


def test_a_node_that_leaves_is_told_with_what_it_said():
    operator, cluster = running_on("a", "b")
    cluster.drain("b")
    said = (("b", "has the taint karpenter.sh/disrupted"),)
    assert leaving(operator, unusable=said) == [
        ("node b has the taint karpenter.sh/disrupted", RelatedObject("Node", "b"))
    ]


def test_a_pod_with_a_notice_is_told_of_too():
    operator, cluster = running_on("a", "b")
    pods = tuple(
        dataclasses.replace(pod, notice="its GPU 3 is unhealthy") if pod.node == "b" else pod
        for pod in cluster.snapshot().pods
    )
    ((message, _),) = leaving(operator, pods=pods)
    assert message == "node b hosts pod tiny-b-0, which must leave: its GPU 3 is unhealthy"


def test_a_node_that_the_plan_does_not_use_may_leave_in_silence():
    operator, cluster = running_on("a", maxGPUs=1)
    cluster.add_node("b")
    cluster.drain("b")
    assert leaving(operator) == []


def test_that_a_node_leaves_is_told_before_the_plan_that_follows_from_it():
    """The plan is known since the cordon, so eviction and move are seen at once."""
    operator, cluster = running_on("a", "b")
    cluster.cordon("b")
    operator.reconcile()
    cluster.tick()
    pod = cluster.pods["tiny-b-0"]
    cluster.pods["tiny-b-0"] = dataclasses.replace(pod, deleting=True)
    actions = operator.reconcile().actions
    said = [action.reason for action in actions if isinstance(action, RecordEvent)]
    assert any(isinstance(action, AdoptPlan) for action in actions)
    assert said == ["NodeLeaving", "PlanSelected"]
