"""epochs/recovery.py: what is done after a loss, and what is never done too early."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.epochs.recovery import STEPS_TO_HALT, recover
from heddle_operator.state.actions import DeletePod, RecordEvent, RequestPlan
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of
from tests.unit.heddle_operator.epochs.test_restoring import saving_job
from worker.contract import StepRecord

LIMITS = Settings()


def after_the_loss_of_a(*others, as_pipeline=False, job=None):
    """(job, what is seen once all others have halted, now)."""
    job = job or a_job()
    operator = FakeOperator(job, a_cluster(job, "a", *others, as_pipeline=as_pipeline))
    operator.settle()
    operator.cluster.kill_node("a")
    operator.cluster.tick()
    return job, operator.cluster.snapshot(), operator.cluster.now


def ranks_changed(observed, **changes):
    """The same with values of every rank on some nodes changed: b={"step": 3}."""
    agents = dict(observed.agents)
    for node, values in changes.items():
        view = agents[f"tiny-{node}-0"]
        ranks = tuple(rank.model_copy(update=values) for rank in view.report.ranks)
        report = view.report.model_copy(update={"ranks": ranks})
        agents[view.pod] = replace(view, report=report)
    return replace(observed, agents=agents)


def silent(observed, node, now, since_s):
    """The same, but the agent of a node has not answered for a while."""
    view = observed.agents[f"tiny-{node}-0"]
    view = replace(view, unreachable_since_s=now - since_s)
    return replace(observed, agents={**observed.agents, view.pod: view})


def not_ready(observed, node):
    """The same, but the kubelet of a node does not answer."""
    nodes = [replace(n, is_ready=n.is_ready and n.name != node) for n in observed.nodes]
    return replace(observed, nodes=tuple(nodes))


def recovered(job, observed, now):
    where = situation(observed, now, LIMITS)
    return recover(view_of(job, observed, now, situation=where, settings=LIMITS), where.live)


def test_once_all_have_halted_the_loss_is_told_and_a_plan_is_searched_for_what_is_left():
    decision = recovered(*after_the_loss_of_a("b", "c"))
    event, request = decision.actions
    assert event.reason == "WorkerLost"
    assert event.message.startswith("rank 0 on a died with the pod; rank 1 on b and 1 more halted")
    assert isinstance(request, RequestPlan)
    assert [node.name for node in request.composition.nodes] == ["b", "c"]


def test_while_a_rank_still_moves_nothing_is_planned():
    job, observed, now = after_the_loss_of_a("b", "c")
    observed = ranks_changed(observed, c={"phase": "training"})
    decision = recovered(job, observed, now)
    (halt,) = decision.actions
    assert (halt.pod, halt.halt.epoch) == ("tiny-c-0", 1)
    assert halt.halt.reason == "rank 0 on a died with the pod"
    assert decision.phase == "Recovering"
    assert decision.look_again_s == LIMITS.halt_timeout_s
    assert "the job waits until the ranks of pod tiny-c-0 halt" in decision.message


@pytest.mark.parametrize("step_s", [1.0, 20.0, 100.0])
def test_a_rank_may_first_end_the_slow_step_that_it_is_in(step_s):
    job, observed, now = after_the_loss_of_a("b", "c")
    observed = ranks_changed(observed, c={"phase": "training"})
    step = StepRecord(epoch=1, step=3, loss=1.0, gradient_norm=1.0, start_s=0.0, end_s=step_s)
    view = observed.agents["tiny-b-0"]
    view = replace(view, report=view.report.model_copy(update={"steps": (step,)}))
    observed = replace(observed, agents={**observed.agents, "tiny-b-0": view})
    allowed_s = max(LIMITS.halt_timeout_s, STEPS_TO_HALT * step_s)
    assert recovered(job, observed, now).look_again_s == pytest.approx(allowed_s)
    late = replace(observed, recovering_since_s=now - allowed_s - 0.001)
    (action,) = recovered(job, late, now).actions
    assert action == DeletePod("tiny-c-0", "its ranks did not halt")


def test_an_agent_that_may_yet_answer_is_waited_for():
    job, observed, now = after_the_loss_of_a("b", "c")
    decision = recovered(job, silent(observed, "c", now, 1.0), now)
    assert (decision.actions, decision.message) == (
        (),
        "the job waits for an answer of pod tiny-c-0",
    )
    assert decision.look_again_s == LIMITS.peer_timeout_s - 1.0


def test_survivors_that_are_done_save_again_for_one_that_was_lost_before_it_was_done():
    job, observed, now = after_the_loss_of_a("b", "c")
    observed = ranks_changed(observed, b={"phase": "done"}, c={"phase": "saving"})
    event, request = recovered(job, observed, now).actions
    assert event.reason == "WorkerLost"
    assert [node.name for node in request.composition.nodes] == ["b", "c"]


@pytest.mark.parametrize(
    ("as_pipeline", "changes", "problem"),
    [
        (True, {}, "the last owner of"),
        (
            False,
            {"b": {"step": 3}, "c": {"step": 9}},
            "there is no step that all survivors can reach",
        ),
    ],
    ids=["a piece without holder", "steps apart"],
)
def test_state_that_cannot_be_put_together_fails_the_job_and_says_why(
    as_pipeline, changes, problem
):
    job, observed, now = after_the_loss_of_a("b", "c", as_pipeline=as_pipeline)
    decision = recovered(job, ranks_changed(observed, **changes), now)
    close, event = decision.actions
    assert (close.epoch, close.outcome, decision.phase) == (1, "failed", "Failed")
    assert event.reason == "StateLost"
    assert problem in decision.message
    assert decision.message == close.message == event.message
    assert decision.reason == close.failed == "StateLost"


def test_a_job_does_not_fail_while_the_last_holder_may_answer_again():
    """It is silent for longer than the peer time-out, but its pod runs."""
    job, observed, now = after_the_loss_of_a("b", "c", as_pipeline=True)
    decision = recovered(job, silent(observed, "c", now, 60.0), now)
    assert (decision.actions, decision.phase) == ((), "Recovering")
    assert decision.message.endswith("unless pod tiny-c-0 answers again")


@pytest.mark.parametrize("since_s", [LIMITS.node_gone_s - 1.0, LIMITS.node_gone_s])
def test_a_job_goes_back_to_its_checkpoint_once_the_last_holder_is_gone_with_its_node(since_s):
    """Where most nodes of a cluster fail at once, Kubernetes ends no pod of them, ever."""
    job, observed, now = after_the_loss_of_a("b", "c", as_pipeline=True, job=saving_job())
    seen = silent(not_ready(observed, "c"), "c", now, since_s)
    decision = recovered(job, seen, now)
    if since_s < LIMITS.node_gone_s:
        assert decision.actions == ()
        assert decision.look_again_s == pytest.approx(1.0)
        assert decision.message.endswith("unless pod tiny-c-0 answers again")
    else:
        close, event = decision.actions
        assert (close.outcome, event.reason) == ("lost", "StateLost")


@pytest.mark.parametrize("saves", [True, False], ids=["the node answers", "nothing is saved"])
def test_the_last_holder_is_waited_for_however_long(saves):
    job = saving_job() if saves else a_job()
    job, observed, now = after_the_loss_of_a("b", "c", as_pipeline=True, job=job)
    seen = silent(observed if saves else not_ready(observed, "c"), "c", now, 10_000.0)
    decision = recovered(job, seen, now)
    assert (decision.actions, decision.phase) == ((), "Recovering")
    assert decision.message.endswith("unless pod tiny-c-0 answers again")


def test_a_start_that_failed_is_begun_anew_with_fresh_pods():
    """No step was committed: the seed gives the same state again, so nothing is lost."""
    job, observed, now = after_the_loss_of_a("b", "c", as_pipeline=True)
    forming = replace(observed.epochs[0], outcome="open", closed_s=None)
    decision = recovered(job, replace(observed, epochs=(forming,)), now)
    *deletes, close = decision.actions
    assert deletes == [DeletePod(f"tiny-{node}-0", "the start failed") for node in "bc"]
    assert (close.epoch, close.outcome) == (1, "aborted")
    assert (decision.phase, decision.look_again_s) == ("Pending", 1.0)


def test_a_stuck_rank_is_kept_if_the_others_cannot_be_joined_without_it():
    job, observed, now = after_the_loss_of_a("b", "c", "d")
    observed = ranks_changed(observed, b={"step": 3}, c={"step": 9}, d={"phase": "switching"})
    late = replace(observed, recovering_since_s=now - 3600)
    event, halt = recovered(job, late, now).actions
    assert isinstance(event, RecordEvent)
    assert halt.pod == "tiny-d-0"
    assert event.reason == "RankStuck"
    assert "pod tiny-d-0 did not halt and are kept: without them, there is no step" in event.message
