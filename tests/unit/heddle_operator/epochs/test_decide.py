"""What the decision loop does, told as claims over the fake cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.epochs.decide import decide
from heddle_operator.report.events import events_of
from heddle_operator.rules.drain import drain_of
from heddle_operator.state.actions import (
    AdoptPlan,
    CreatePod,
    DeletePod,
    RequestPlan,
    SendDirective,
    SendHalt,
)
from heddle_operator.state.snapshot import Observed
from tests.fakes.operator import FakeOperator, a_job, running_on, view_of, waiting


def live_epoch(cluster):
    return {rank.epoch for _, rank in cluster.holders()}


def reasons(cluster):
    return [(record.epoch, record.reason, record.outcome) for record in cluster.records.all]


def until_prepared(operator):
    """Stop just before the switch is sent."""
    cluster = operator.cluster
    newest = cluster.records.all[-1].epoch
    for _ in range(30):
        observed = cluster.snapshot()
        actions = decide(view_of(operator.job, observed, cluster.now)).actions
        switches = [a for a in actions if isinstance(a, SendDirective)]
        if any(a.directive.phase == "switch" and a.directive.epoch > newest for a in switches):
            return
        operator.reconcile()
        cluster.tick()
    raise AssertionError("never prepared")


def test_without_nodes_it_waits_for_gpus():
    decision = decide(view_of(a_job(), Observed(), 0.0))
    assert [action.reason for action in decision.actions] == ["InsufficientGPUs"]
    assert decision.phase == "Pending"
    assert "0 GPUs are usable, minGPUs is 1" in decision.message


def test_a_job_starts_and_trains():
    _, cluster = running_on("a", "b")
    assert reasons(cluster) == [(1, "start", "live")]
    assert {rank.phase for _, rank in cluster.holders()} == {"training"}


def test_no_pod_is_created_before_the_plan_is_adopted():
    operator = waiting("a")
    decision = operator.run(lambda d: any(isinstance(a, CreatePod) for a in d.actions))
    assert decision.phase == "Preparing"
    assert len(operator.cluster.records.all) == 1


def test_a_node_that_joins_is_used_without_a_restart():
    operator, cluster = running_on("a")
    ((agent, before),) = cluster.holders()
    cluster.add_node("b")
    operator.settle()
    assert reasons(cluster)[1:] == [(2, "join", "live")]
    assert agent.ranks[before.slot].pid == before.pid


def test_a_joiner_waits_for_the_debounce():
    operator, cluster = running_on("a", joinDebounceSeconds=1)
    cluster.add_node("b")
    assert not operator.reconcile().actions
    assert operator.decision.look_again_s == pytest.approx(1.0)


def test_a_gain_that_does_not_pay_is_refused_and_said():
    operator, cluster = running_on("a")
    cluster.add_node("slow", "demo-slow")
    operator.settle()
    assert len(reasons(cluster)) == 1
    (event,) = [e for e in cluster.events.values() if e.reason == "PlanKept"]
    assert event.message == "the plan is kept: a gain of +0.5 % does not pay, minGainPercent is 2"


def test_a_drained_node_is_left_and_its_pod_deleted_only_then():
    operator, cluster = running_on("a", "b")
    cluster.drain("a")
    operator.run(lambda d: any(isinstance(a, DeletePod) for a in d.actions))
    assert reasons(cluster)[-1] == (2, "drain", "live")
    assert set(cluster.agents) == {"tiny-b-0"}


@pytest.mark.parametrize("suspends", [False, True])
def test_ranks_whose_record_cannot_be_read_train_on_and_that_is_said(suspends):
    operator, cluster = running_on("a", "b")
    cluster.drain("a")
    cluster.cordon("b")
    spec = operator.job.spec.model_copy(update={"suspend": suspends})
    job = operator.job.model_copy(update={"spec": spec})
    view = view_of(job, replace(cluster.snapshot(), epochs=()), cluster.now)
    decision = decide(view)
    assert decision.actions == ()
    assert (decision.reason, decision.phase) == ("RecordUnread", "Running")
    assert decision.message.startswith("the record of epoch 1 cannot be read")
    drain = drain_of(view)
    assert (drain.evictable, "record of epoch 1" in drain.blocked) == (frozenset(), True)
    assert [event.reason for event in events_of(view, decision, drain)] == ["RecordUnread"]


def test_a_rank_that_halted_with_an_epoch_whose_record_was_pruned_hinders_nothing():
    operator, cluster = running_on("a")
    cluster.add_node("b")
    operator.settle()
    observed = cluster.snapshot()
    view = observed.agents["tiny-a-0"]
    late = tuple(
        rank.model_copy(update={"phase": "halted", "epoch": 1}) for rank in view.report.ranks
    )
    agents = {
        **observed.agents,
        "tiny-a-0": replace(view, report=view.report.model_copy(update={"ranks": late})),
    }
    newest = replace(observed, epochs=observed.epochs[-1:], agents=agents)
    assert decide(view_of(operator.job, newest, cluster.now)).reason != "RecordUnread"


@pytest.mark.parametrize("is_drained", [True, False])
def test_a_job_that_loses_a_node_or_a_pod_while_it_starts_is_planned_anew(is_drained):
    operator = waiting("a", "b", "c")
    operator.run(lambda d: any(isinstance(a, CreatePod) for a in d.actions))
    cluster = operator.cluster
    if is_drained:
        cluster.drain("b")
    else:
        cluster.do(DeletePod("tiny-b-0", "somebody deletes it"))
    operator.settle()
    assert reasons(cluster)[-1][1:] == ("start", "live")
    assert {epoch[2] for epoch in reasons(cluster)[:-1]} <= {"aborted"}
    assert set(cluster.records.all[-1].plan.nodes) == (
        {"a", "c"} if is_drained else {"a", "b", "c"}
    )


def test_a_killed_node_costs_no_step_that_was_applied():
    operator, cluster = running_on("a", "b")
    cluster.tear_step(1)
    survivor = cluster.agents["tiny-b-0"].ranks[0]
    cluster.kill_node("a")
    operator.settle()
    assert reasons(cluster)[-1] == (2, "loss", "live")
    directive = cluster.agents["tiny-b-0"].directive
    assert directive.resume.step == survivor.step
    assert directive.layouts.keys() == {1}


def after_a_loss(*nodes, halted=(), **change):
    """What is seen when node a dies and only the ranks on some nodes have halted."""
    operator, cluster = running_on(*nodes)
    before = cluster.snapshot()
    cluster.kill_node("a")
    cluster.tick()
    after = cluster.snapshot()
    agents = dict(after.agents)
    for name in set(agents) - {f"tiny-{node}-0" for node in halted}:
        view = before.agents[name]
        ranks = tuple(rank.model_copy(update=change) for rank in view.report.ranks)
        agents[name] = replace(view, report=view.report.model_copy(update={"ranks": ranks}))
    now = cluster.now + 1000  # no report has changed for long: the survivors trained in peace
    return operator.job, replace(after, agents=agents), now


def test_a_rank_that_has_not_heard_of_a_loss_yet_is_not_stuck_until_the_time_to_halt_is_over():
    job, observed, now = after_a_loss("a", "b", "c", halted=("b",))
    first = decide(view_of(job, observed, now))
    assert ([type(a) for a in first.actions], first.phase) == ([SendHalt], "Recovering")
    later = decide(view_of(job, replace(observed, recovering_since_s=now), now + 24))
    assert later.actions == first.actions
    last = decide(view_of(job, replace(observed, recovering_since_s=now), now + 26))
    assert [action.name for action in last.actions] == ["tiny-c-0"]


def test_a_stuck_rank_that_alone_holds_a_piece_is_never_deleted():
    job, observed, now = after_a_loss("a", "b")
    last = decide(view_of(job, replace(observed, recovering_since_s=now), now + 3600))
    assert [type(action).__name__ for action in last.actions] == ["RecordEvent", "SendHalt"]
    assert last.reason == "RankStuck"
    assert last.message == (
        "the ranks of pod tiny-b-0 did not halt and are kept: without them, no rank holds any state"
    )


def test_ranks_that_wait_to_form_a_world_with_a_dead_one_are_told_to_give_up():
    job, observed, now = after_a_loss("a", "b", phase="switching")
    forming = replace(observed.epochs[-1], outcome="open")
    decision = decide(view_of(job, replace(observed, epochs=(forming,)), now))
    halt, told = decision.actions
    assert (halt.pod, halt.halt.epoch) == ("tiny-b-0", 1)
    assert (told.pod, told.directive.phase, told.directive.epoch) == ("tiny-b-0", "abort", 1)


def test_a_rank_that_died_is_replaced_on_its_gpu():
    operator, cluster = running_on("a", "b")
    cluster.kill_rank("tiny-a-0", 0)
    operator.settle()
    members = cluster.agents["tiny-a-0"].directive.members
    assert [(m.pod, m.holds) for m in members] == [("tiny-a-0", None), ("tiny-b-0", 1)]
    assert live_epoch(cluster) == {2}


def test_the_last_holder_of_a_piece_is_missed_by_name():
    operator, cluster = running_on("a", "b", as_pipeline=True)
    cluster.kill_node("b")
    decision = operator.settle()
    assert decision.phase == "Failed"
    assert decision.message.startswith("the last owner of 4.")
    assert {pod.phase for pod in cluster.pods.values()} == {"ended"}


def test_a_joiner_that_dies_aborts_its_epoch_and_the_old_one_trains_on():
    operator, cluster = running_on("a")
    step = cluster.holders()[0][1].step
    cluster.add_node("b")
    until_prepared(operator)
    cluster.kill_pod("tiny-b-0")
    operator.reconcile()
    assert reasons(cluster)[-1] == (2, "join", "aborted")
    assert cluster.holders()[0][1].step > step
    operator.settle()
    assert reasons(cluster)[-1] == (3, "join", "live")


def test_a_store_that_restarts_during_prepare_costs_only_the_epoch():
    operator, cluster = running_on("a")
    cluster.add_node("b")
    until_prepared(operator)
    cluster.restart_store("tiny-a-0")
    operator.settle()
    assert [outcome for _, _, outcome in reasons(cluster)] == ["live", "aborted", "live"]


def test_a_store_that_restarts_while_training_costs_nothing():
    operator, cluster = running_on("a", "b")
    cluster.restart_store("tiny-a-0")
    operator.settle()
    assert len(reasons(cluster)) == 1


def test_the_store_of_an_epoch_is_on_an_agent_that_stays():
    operator, cluster = running_on("a", "b")
    cluster.drain("a")
    operator.settle()
    assert cluster.records.all[-1].seal.store == "tiny-b-0:1"


def test_a_new_operator_goes_on_in_the_middle_of_a_switch():
    operator, cluster = running_on("a")
    cluster.add_node("b")
    until_prepared(operator)
    FakeOperator(operator.job, cluster).settle()
    assert live_epoch(cluster) == {2}


@pytest.mark.parametrize("flips", [0, 1])
def test_a_switch_that_breaks_in_the_middle_goes_on_from_both_layouts(flips):
    operator, cluster = running_on("a", "b")
    cluster.add_node("c")
    until_prepared(operator)
    operator.reconcile()
    assert cluster.break_switch(flips)
    operator.settle()
    assert reasons(cluster)[-1][1:] == ("join" if flips == 0 else "loss", "live") or flips == 0
    assert {rank.phase for _, rank in cluster.holders()} == {"training"}


def test_an_agent_that_does_not_answer_for_less_than_the_peer_timeout_is_no_loss():
    operator, cluster = running_on("a", "b")
    cluster.unreachable["tiny-a-0"] = cluster.now
    for _ in range(50):
        operator.reconcile()
        cluster.tick()
    del cluster.unreachable["tiny-a-0"]
    operator.settle()
    assert len(reasons(cluster)) == 1


def test_a_job_whose_steps_are_done_is_complete_and_its_pods_end_but_stay():
    operator, cluster = running_on("a")
    for agent, rank in cluster.holders():
        agent.change(rank.slot, phase="done")
    assert operator.settle().phase == "Complete"
    assert [pod.phase for pod in cluster.pods.values()] == ["ended"]


def test_max_gpus_cuts_the_composition():
    operator, _ = running_on("a", "b", "c", maxGPUs=2)
    assert operator.cluster.records.all[-1].plan.gpus == 2


def test_an_idle_pod_is_released_after_the_cooldown():
    operator, cluster = running_on("a", "b", cooldownSeconds=1)
    cluster.add_node("slow", "demo-slow")
    cluster.do(CreatePod("tiny-slow-0", "slow", 0, 1))
    assert "tiny-slow-0" in cluster.pods
    for _ in range(30):
        operator.reconcile()
        cluster.tick()
    assert "tiny-slow-0" not in cluster.pods


def test_an_epoch_that_is_aborted_again_and_again_backs_off():
    operator, cluster = running_on("a")
    cluster.add_node("b")
    for _ in range(80):
        operator.reconcile()
        cluster.tick()
        if any(rank.pending_epoch for _, rank in cluster.holders()):
            cluster.kill_pod("tiny-b-0")
    aborted = [record for record in cluster.records.all if record.outcome == "aborted"]
    assert 2 <= len(aborted) <= 6
    assert live_epoch(cluster) == {1}


def test_a_plan_is_asked_for_once():
    operator = waiting("a")
    first = [a for a in operator.reconcile().actions if isinstance(a, RequestPlan)]
    again = [a for a in operator.reconcile().actions if isinstance(a, RequestPlan)]
    assert (len(first), len(again)) == (1, 0)


def test_another_operator_that_adopted_first_wins():
    operator, cluster = running_on("a")
    cluster.add_node("b")
    operator.run(lambda d: any(isinstance(a, RequestPlan) for a in d.actions))
    cluster.tick()
    observed = cluster.snapshot()
    (adopt,) = [
        a
        for a in decide(view_of(operator.job, observed, cluster.now)).actions
        if isinstance(a, AdoptPlan)
    ]
    cluster.do(adopt)
    operator.settle()
    assert [epoch for epoch, _, _ in reasons(cluster)] == [1, 2]
