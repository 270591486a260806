"""When a plan is asked for and adopted, and with which words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heddle_operator.epochs.decide import decide
from heddle_operator.state.actions import AdoptPlan, DeletePod, RecordEvent, RequestPlan
from heddle_operator.state.epoch_record import Failure
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.snapshot import Headroom, Observed
from tests.fakes.operator import (
    FakeOperator,
    a_cluster,
    a_job,
    running,
    running_on,
    view_of,
    waiting,
)


def adopts(decision):
    return any(isinstance(action, AdoptPlan) for action in decision.actions)


def adopted(operator):
    """The decision that adopts the next plan."""
    return operator.run(adopts)


def events(decision):
    return [a.message for a in decision.actions if getattr(a, "reason", "") == "PlanSelected"]


def test_a_plan_is_asked_for_once_while_the_answer_is_out():
    operator = waiting("a")
    assert [type(action) for action in operator.reconcile().actions] == [RequestPlan]
    assert operator.reconcile().actions == ()
    assert operator.decision.phase == "Planning"


@pytest.mark.parametrize("reason", ["start", "join", "drain", "loss"])
def test_a_request_says_why_it_is_asked(reason):
    operator = (
        running("a", "b")
        if reason != "start"
        else FakeOperator(job := a_job(), a_cluster(job, "a"))
    )
    cluster = operator.cluster
    if reason == "join":
        cluster.add_node("c")
    elif reason == "drain":
        cluster.drain("b")
    elif reason == "loss":
        cluster.kill_node("b")

    def asks(decision):
        return any(isinstance(action, RequestPlan) for action in decision.actions)

    decision = operator.run(asks)
    assert {a.reason for a in decision.actions if isinstance(a, RequestPlan)} == {reason}


def test_why_a_job_leaves_a_node_is_in_its_event_with_the_nodes_own_words():
    operator = running("a", "b")
    operator.cluster.drain("b")
    said = (("b", "has the taint karpenter.sh/disrupted"),)
    snapshot = operator.cluster.snapshot
    operator.cluster.snapshot = lambda: replace(snapshot(), unusable=said)
    assert events(adopted(operator)) == [
        "epoch 2 (drain): the job moves: node b has the taint karpenter.sh/disrupted"
    ]


def test_a_recovery_goes_on_though_the_epochs_that_broke_were_never_on_record_as_live():
    """An epoch without an end gives the backoff no beginning."""
    operator, cluster = running_on("a", "b", "c")
    cluster.kill_node("a")
    for epoch in (2, 3, 4):
        adopted(operator)
        for _ in range(60):
            cluster.tick()
            holders = cluster.holders()
            if {rank.epoch for _, rank in holders} == {epoch}:
                break
            operator.reconcile()
        for agent, rank in holders:
            agent.change(rank.slot, step=4, phase="halted", error="lost a peer")
    outcomes = [(record.reason, record.outcome) for record in cluster.records.all]
    assert outcomes == [("start", "live"), *3 * [("loss", "open")]]


def test_why_a_job_recovers_is_in_its_event():
    operator = running("a", "b")
    operator.cluster.kill_node("b")
    (message,) = events(adopted(operator))
    assert message.startswith("epoch 2 (loss): the job moves: rank ")
    assert "died with the pod" in message


def test_the_last_words_of_a_pod_that_failed_are_told():
    operator = running("a", "b")
    operator.cluster.kill_pod("tiny-b-0")
    pod = operator.cluster.pods["tiny-b-0"]
    operator.cluster.pods["tiny-b-0"] = replace(
        pod, problem="worker ended with exit status 137: OOMKilled"
    )
    (message,) = events(adopted(operator))
    assert "died with the pod (worker ended with exit status 137: OOMKilled)" in message


def test_too_few_gpus_name_the_nodes_that_cannot_be_used_and_count_the_rest():
    unusable = tuple((f"n{i}", "is cordoned") for i in range(5))
    reason = decide(view_of(a_job(minGPUs=2), Observed(unusable=unusable), 0.0)).message
    assert reason == (
        "the job waits: 0 GPUs are usable, minGPUs is 2 (n0 is cordoned; n1 is cordoned; "
        "n2 is cordoned and 2 more)"
    )


def test_pods_of_others_that_come_and_go_make_no_further_event():
    def event(*unusable, **elastic):
        observed = Observed(unusable=unusable)
        (found,) = decide(view_of(a_job(minGPUs=2, **elastic), observed, 0.0)).actions
        return found

    first, second = event(("n0", "is full")), event(("n0", "is full"), ("n1", "is full"))
    assert first.message != second.message
    assert first.key == second.key
    assert event().key != first.key


def test_a_planner_without_a_plan_is_told_in_its_own_words():
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, "a"))
    (request,) = operator.reconcile().actions
    reply = PlanReply(plan=None, problem="memory binds")
    observed = replace(operator.cluster.snapshot(), replies={request.key: reply}, planning=())
    decision = decide(view_of(job, observed, operator.cluster.now))
    assert decision.message == "there is no plan: memory binds"
    assert [action.reason for action in decision.actions] == ["InsufficientGPUs"]
    assert decision.reason == "InsufficientGPUs"


def test_gpus_that_failed_are_the_reason_where_the_others_have_no_plan():
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    operator.run(lambda _: bool(operator.cluster.records.all))
    failure = Failure(kind="device", sentence="CUDA error", epoch=1, step=0, gpus=(("b", 0),))
    (record,) = operator.cluster.records.all
    failed = replace(record, outcome="aborted", closed_s=operator.cluster.now, failures=(failure,))
    observed = replace(operator.cluster.snapshot(), epochs=(failed,), replies={}, planning=())
    (request,) = decide(view_of(job, observed, operator.cluster.now)).actions
    assert [node.name for node in request.composition.nodes] == ["a"]
    reply = PlanReply(plan=None, problem="memory binds")
    observed = replace(observed, replies={request.key: reply})
    decision = decide(view_of(job, observed, operator.cluster.now))
    assert (decision.phase, decision.reason) == ("Pending", "GPUFailed")
    said = "GPU 0 of b failed: CUDA error; memory binds"
    assert decision.message == f"there is no plan: {said}"
    assert [(one.reason, one.message) for one in decision.actions] == [("GPUFailed", said)]


def test_nodes_that_come_and_go_make_no_further_event_of_a_planner_without_a_plan():
    def event(*names, gpus):
        job = a_job()
        operator = FakeOperator(job, a_cluster(job, *names))
        (request,) = operator.reconcile().actions
        reply = PlanReply(plan=None, problem=f"memory binds on {len(names)}", gpus=gpus)
        observed = replace(operator.cluster.snapshot(), replies={request.key: reply}, planning=())
        (found,) = decide(view_of(job, observed, operator.cluster.now)).actions
        return found

    one, two = event("a", gpus=1), event("a", "b", gpus=2)
    assert one.message != two.message
    assert one.key == two.key
    assert event("a", gpus=0).key != one.key, "a search that failed is another cause"


def test_a_job_without_a_plan_for_all_that_it_may_have_says_that_whoever_holds_the_gpus():
    job = a_job(minGPUs=1, maxGPUs=1)
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    (request,) = operator.reconcile().actions
    reply = PlanReply(plan=None, problem="memory binds", gpus=1)
    seen = replace(operator.cluster.snapshot(), replies={request.key: reply}, planning=())
    dealt = replace(seen, allowed={}, dealt=(("team/other", 2),))
    reasons = {decide(view_of(job, each, operator.cluster.now)).message for each in (seen, dealt)}
    assert reasons == {"there is no plan: memory binds"}


@pytest.mark.parametrize(("cooldown", "waits"), [(0, False), (30, True)])
def test_a_join_waits_for_the_cooldown_after_the_last_change(cooldown, waits):
    operator = running("a", cooldownSeconds=cooldown)
    operator.cluster.add_node("b")
    if not waits:
        assert adopted(operator)
        return
    adopted(operator)  # the first change of a job waits for nobody
    operator.settle()
    operator.cluster.add_node("c")
    decision = operator.run(lambda d: "the change begins after the cooldown" in d.message)
    assert decision.look_again_s <= 30


def test_a_gain_that_does_not_pay_in_a_restless_cluster_is_taken_once_it_rests():
    operator, cluster = running_on("a")
    for _ in range(2):
        cluster.add_node("b")
        operator.settle()
        cluster.drain("b")
        operator.settle()
        cluster.kill_node("b")
    closed_s = [record.closed_s for record in cluster.records.all]
    snapshot, stall_s = cluster.snapshot, 10 * (closed_s[-1] - closed_s[0])
    cluster.snapshot = lambda: replace(snapshot(), stalls_s=(stall_s,))
    cluster.add_node("b")
    kept = operator.run(lambda d: "the next change is expected in" in d.message)
    while kept.look_again_s == operator.settings.progress_timeout_s:
        cluster.tick(kept.look_again_s)
        kept = operator.reconcile()
    cluster.tick(kept.look_again_s - 1)
    assert not adopts(operator.reconcile())
    cluster.tick(1)
    assert adopts(operator.reconcile())


def test_a_template_that_the_cluster_refuses_is_told_before_any_plan_is_asked_for():
    job = a_job()
    cluster = a_cluster(job, "a")
    observed = replace(cluster.snapshot(), template_problem="violates PodSecurity")
    decision = decide(view_of(job, observed, cluster.now))
    assert [type(action) for action in decision.actions] == [RecordEvent]
    assert decision.actions[0].reason == "PodsCannotStart"
    assert decision.message == "the cluster takes no pod of the job: violates PodSecurity"


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (Headroom(0, None, "quota team"), " (quota team leaves 0 GPUs more)"),
        (Headroom(None, 0, "quota team"), " (quota team leaves 0 pods more)"),
        (Headroom(5, 5, "quota team"), ""),
    ],
)
def test_a_job_that_trains_says_which_quota_keeps_it_from_more(room, words):
    operator = running("a", "b")
    snapshot = operator.cluster.snapshot
    operator.cluster.snapshot = lambda: replace(snapshot(), headroom=room)
    sentence = operator.reconcile().message
    if words:
        assert sentence == f"the plan is kept: it was found for these very nodes{words}"
    else:
        assert "quota" not in sentence


def test_a_job_that_waits_for_a_quota_says_so():
    job = a_job(minGPUs=2)
    cluster = a_cluster(job, "a", "b")
    observed = replace(cluster.snapshot(), headroom=Headroom(1, None, "quota team"))
    reason = decide(view_of(job, observed, cluster.now)).message
    assert "1 GPU is usable, minGPUs is 2 (quota team leaves 1 GPU more)" in reason


def moved_in_an_emergency():
    """A job that dropped its replica on b, because b had 5 s left."""
    operator = running("a", "b")
    operator.cluster.drain("b", 5.0)
    (message,) = events(adopted(operator))
    assert message.startswith("epoch 2 (drain): the job moves in haste")
    return operator


def test_after_an_emergency_move_the_planner_is_asked_about_the_gpus_that_are_left():
    operator = moved_in_an_emergency()
    operator.run(lambda decision: decision.phase == "Running")
    asked = operator.run(lambda decision: any(isinstance(a, RequestPlan) for a in decision.actions))
    (request,) = (a for a in asked.actions if isinstance(a, RequestPlan))
    assert [node.name for node in request.composition.nodes] == ["a"]
    assert operator.settle().message.startswith("the plan is kept: ")


def test_a_node_that_comes_back_after_an_emergency_move_is_used_again():
    operator = moved_in_an_emergency()
    operator.settle()
    assert operator.cluster.records.all[-1].plan.nodes == ("a",)
    operator.cluster.add_node("b")
    operator.settle()
    assert operator.cluster.records.all[-1].plan.nodes == ("a", "b")


def grow(operator, steps=2000):
    spec = operator.job.spec.model_copy(update={"steps": steps})
    operator.job = operator.job.model_copy(update={"spec": spec})


def epochs(cluster):
    return [(record.reason, record.outcome, record.steps) for record in cluster.records.all]


def test_the_live_plan_is_adopted_once_more_with_the_steps_that_are_wanted():
    operator, cluster = running_on("a", "b", minGainPercent=0)
    grow(operator)
    operator.settle()
    assert epochs(cluster) == [("start", "live", 1000), ("join", "live", 2000)]


@pytest.mark.parametrize("notice_s", [30.0, math.inf])
def test_a_node_with_a_notice_is_left_first_and_the_steps_come_with_that_move(notice_s):
    operator, cluster = running_on("a", "b", minGainPercent=0)
    grow(operator)
    cluster.drain("b", notice_s)
    operator.run(lambda d: any(isinstance(a, DeletePod) for a in d.actions))
    assert epochs(cluster) == [("start", "live", 1000), ("drain", "live", 2000)]


def test_attempts_that_break_are_repeated_with_pauses():
    operator, cluster = running_on("a", "b", minGainPercent=0)
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
    operator, cluster = running_on("a", "b", minGainPercent=0)
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


def test_a_plan_is_asked_for_again_for_the_same_nodes_once_its_times_were_corrected():
    operator, cluster = running_on("a", "b")
    snapshot, adopted_s = cluster.snapshot, cluster.records.all[-1].adopted_s
    cluster.replies.clear()
    for repriced_s, asks in ((adopted_s - 1, False), (adopted_s + 1, True)):
        seen = replace(snapshot(), repriced_s=repriced_s)
        decision = decide(view_of(operator.job, seen, cluster.now))
        assert any(isinstance(action, RequestPlan) for action in decision.actions) == asks
