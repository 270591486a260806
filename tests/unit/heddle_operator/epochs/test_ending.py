"""A job ends well when the weights are on disk, and badly when an error would come for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.apis.spec import Output
from heddle_operator.epochs.decide import decide
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, RecordEvent
from heddle_operator.state.settings import Settings
from tests.fakes.operator import FakeOperator, a_cluster, a_job, running_on, view_of

LIMITS = Settings()


def change(cluster, node, **values):
    cluster.agents[f"tiny-{node}-0"].change(0, **values)


def outcomes(cluster):
    return [(record.epoch, record.outcome) for record in cluster.records.all]


def test_a_job_is_complete_only_when_every_rank_has_read_its_part_back():
    operator, cluster = running_on("a", "b")
    change(cluster, "a", phase="done")
    change(cluster, "b", phase="saving")
    decision = operator.reconcile()
    assert (decision.phase, decision.actions) == ("Saving", ())
    assert decision.message == "the final weights are written: 1 of 2 ranks are done"
    change(cluster, "b", phase="done")
    assert operator.reconcile().phase == "Complete"
    assert outcomes(cluster) == [(1, "complete")]


def test_weights_in_parts_are_said_and_stay_said():
    operator, cluster = running_on("a", "b")
    change(cluster, "a", phase="done", kept_as="parts")
    change(cluster, "b", phase="done", kept_as="parts")
    for _ in range(2):
        decision = operator.reconcile()
        assert decision.phase == "Complete"
        assert decision.message.endswith("in one folder and run `heddle weights export`")


def test_weights_that_cannot_be_written_keep_the_job_in_saving_and_are_told_of():
    operator, cluster = running_on("a")
    cluster.output_error = "No space left on device"
    change(cluster, "a", phase="saving")
    for _ in range(100):
        decision = operator.reconcile()
        cluster.tick(10.0)
    assert decision.phase == "Saving"
    assert decision.message == "the final weights cannot be written: No space left on device"
    assert [e.message for e in cluster.events.values() if e.reason == "OutputFailed"] == [
        decision.message
    ]
    cluster.output_error = None
    assert operator.settle().phase == "Complete"


def test_a_rank_that_is_lost_before_it_was_done_is_recovered_from():
    """The others hold the state: they form an epoch that has no step left, and save."""
    operator, cluster = running_on("a", "b")
    for agent, rank in cluster.holders():
        agent.change(rank.slot, phase="saving", step=1000)
    cluster.output_error = "No space left on device"
    cluster.kill_node("a")
    operator.run(lambda d: len(cluster.records.all) == 2 and d.phase == "Saving")
    cluster.output_error = None
    assert operator.settle().phase == "Complete"
    assert outcomes(cluster)[-1] == (2, "complete")
    assert max(rank.step for _, rank in cluster.holders()) == 1000 if cluster.agents else True


def test_a_rank_that_was_done_stays_done_when_its_agent_falls_silent():
    operator, cluster = running_on("a", "b")
    for node in "ab":
        change(cluster, node, phase="done")
    cluster.snapshot()
    cluster.silence("tiny-a-0")
    assert operator.reconcile().phase == "Complete"


@pytest.mark.parametrize("phase", ["done", "saving"])
def test_a_change_that_prepares_when_the_last_step_falls_is_given_up_at_once(phase):
    operator, cluster = running_on("a")
    cluster.add_node("b")
    operator.run(lambda _: len(cluster.records.all) == 2)
    change(cluster, "a", phase=phase)
    decision = operator.reconcile()
    assert (
        CloseEpoch(epoch=2, outcome="aborted", message="the training has ended") in decision.actions
    )
    assert decision.phase == ("Complete" if phase == "done" else "Saving")
    assert operator.settle().phase == "Complete"
    assert {pod.phase for pod in cluster.pods.values()} <= {"ended"}


def test_nothing_is_adopted_while_weights_are_written():
    operator, cluster = running_on("a")
    cluster.output_error = "No space left on device"
    change(cluster, "a", phase="saving")
    cluster.add_node("b")
    for _ in range(20):
        adopted = [a for a in operator.reconcile().actions if isinstance(a, AdoptPlan)]
        assert not adopted
        cluster.tick()


def test_a_loss_that_is_not_finite_fails_the_job():
    operator, cluster = running_on("a", "b")
    step = cluster.agents["tiny-a-0"].ranks[0].step
    for node in "ab":
        change(cluster, node, phase="halted", error_kind="numeric", error="the loss is nan")
    decision = operator.reconcile()
    assert decision.phase == "Failed"
    assert decision.message == f"the loss is nan (after step {step})"
    assert decision.reason == "Diverged"
    assert [a.reason for a in decision.actions if isinstance(a, RecordEvent)] == ["Diverged"]
    assert operator.settle().message == decision.message


def test_a_job_that_diverged_fails_once_the_weights_before_the_step_are_written():
    job = a_job()
    spec = job.spec.model_copy(update={"output": Output(path="/out")})
    job = job.model_copy(update={"spec": spec})
    cluster = a_cluster(job, "a", "b")
    operator = FakeOperator(job, cluster)
    operator.settle()
    words = {"error_kind": "numeric", "error": "the loss is nan", "step": 17}
    change(cluster, "a", phase="saving", **words)
    change(cluster, "b", phase="done", **words)
    decision = operator.reconcile()
    assert decision.phase == "Saving"
    assert decision.message.startswith("the loss is nan; the final weights are written: 1")
    change(cluster, "a", phase="done", **words)
    decision = operator.reconcile()
    assert decision.phase == "Failed"
    kept = "the weights after step 17 are in /out"
    assert decision.message == f"the loss is nan; {kept}"
    assert [a.reason for a in decision.actions if isinstance(a, RecordEvent)] == ["Diverged"]
    assert outcomes(cluster) == [(1, "failed")]
    assert operator.settle().message == decision.message


def test_the_same_error_twice_at_one_step_fails_the_job_and_not_for_ever():
    operator, cluster = running_on("a", "b")
    sentence = "ValueError: token 300 is beyond the vocabulary at 0x7f0{}"
    for epoch in (1, 2):
        operator.run(lambda _, e=epoch: {r.epoch for _, r in cluster.holders()} == {e})
        for agent, rank in cluster.holders():
            said = sentence.format(epoch)
            values = {"error": said, "error_site": "ValueError in worker.x.f", "step": 500}
            agent.change(rank.slot, phase="halted", error_kind="other", **values)
    decision = operator.run(lambda d: d.phase == "Failed")
    words = f"the same error came twice after step 500: {sentence.format(2)}"
    assert (decision.reason, decision.message) == ("DeterministicError", words)
    assert len(cluster.records.all) == 2


def test_recoveries_that_train_no_step_come_with_growing_pauses():
    """Whatever breaks the world each time, it is not a hot loop."""
    operator, cluster = running_on("a", "b")
    for _ in range(600):
        for agent, rank in cluster.holders():
            if (rank.phase == "training" and rank.epoch > 1) or rank.phase == "training":
                agent.change(rank.slot, step=500, error="broken")
        operator.reconcile()
        cluster.tick()
    assert 3 <= len(cluster.records.all) <= 9


def test_the_phase_of_a_job_whose_epoch_is_open_still_ends():
    """The operator was away while the ranks formed the epoch and trained all of it."""
    operator, cluster = running_on("a")
    record = replace(cluster.records.all[-1], outcome="open", closed_s=None)
    change(cluster, "a", phase="done", step=1000)
    observed = replace(cluster.snapshot(), epochs=(record,))
    decision = decide(view_of(operator.job, observed, cluster.now, settings=LIMITS))
    assert decision.actions == (CloseEpoch(epoch=1, outcome="complete"),)


def test_a_rank_that_falls_silent_while_it_saves_is_recovered_from():
    operator, cluster = running_on("a", "b")
    for agent, rank in cluster.holders():
        agent.change(rank.slot, phase="saving", step=1000)
    cluster.output_error = "No space left on device"
    cluster.snapshot()
    cluster.silence("tiny-a-0")
    operator.run(lambda d: len(cluster.records.all) == 2 and d.phase == "Saving", 200)
    assert cluster.records.all[-1].plan.nodes == ("b",)
