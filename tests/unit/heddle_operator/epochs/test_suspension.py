"""epochs/suspension.py: pods go once the newest step is saved, and the job goes on from there."""

from __future__ import annotations

from heddle_operator.epochs.suspension import RETRY_S
from tests.fakes.operator import FakeOperator, a_cluster
from tests.unit.heddle_operator.epochs.test_restoring import live_again, saving_job, trained_to


def with_suspend(operator: FakeOperator, suspends: bool) -> None:
    """The user edits `spec.suspend`."""
    spec = operator.job.spec.model_copy(update={"suspend": suspends})
    operator.job = operator.job.model_copy(update={"spec": spec})


def suspended(operator):
    with_suspend(operator, True)
    operator.run(lambda found: found.phase == "Suspended" and not operator.cluster.pods)


def test_the_pods_go_once_the_newest_step_is_saved():
    operator = trained_to(6, "a", "b")
    suspended(operator)
    record = operator.cluster.records.all[-1]
    assert (record.outcome, record.step) == ("suspended", operator.cluster.store[-1].step)
    assert record.step > 4  # not the periodic one


def test_the_job_goes_on_from_the_step_at_which_it_was_suspended_on_other_nodes():
    operator = trained_to(6, "a", "b")
    suspended(operator)
    step = operator.cluster.store[-1].step
    for node in ("a", "b"):
        operator.cluster.kill_node(node)
    operator.cluster.add_node("c", gpu_type="demo-slow")
    with_suspend(operator, False)
    assert live_again(operator, 1).seal.restore.step == step
    assert "backoff" not in operator.decision.message


def test_a_suspended_job_holds_no_pod_and_adopts_no_plan():
    operator = trained_to(6, "a")
    suspended(operator)
    operator.cluster.add_node("b")
    for _ in range(20):
        operator.reconcile()
        operator.cluster.tick()
    assert operator.decision.phase == "Suspended"
    assert not operator.cluster.pods
    assert len(operator.cluster.records.all) == 1


def test_while_the_store_fails_the_job_trains_on_and_says_so():
    operator = trained_to(6, "a")
    operator.cluster.store_error = "no space left on device"
    with_suspend(operator, True)
    decision = operator.run(lambda found: found.reason == "CheckpointFailed")
    assert (decision.phase, decision.look_again_s > 0) == ("Suspending", True)
    before = max(operator.cluster.training_steps())
    for _ in range(5):
        operator.cluster.tick()
        operator.reconcile()
    assert max(operator.cluster.training_steps()) > before
    operator.cluster.store_error = None
    operator.cluster.tick(60.0)
    operator.run(lambda found: found.phase == "Suspended")
    assert operator.cluster.store[-1].step > before


def test_a_fast_clock_of_a_pod_keeps_no_suspension_waiting():
    operator = trained_to(6, "a", job=saving_job(100_000))  # a periodic save would end the wait
    operator.cluster.pods_ahead_s = 3600.0
    operator.cluster.store_error = "no space left on device"
    with_suspend(operator, True)
    operator.run(lambda found: found.reason == "CheckpointFailed")
    operator.cluster.store_error = None
    operator.cluster.tick(RETRY_S)
    operator.run(lambda found: found.phase == "Suspended")


def test_a_job_that_starts_suspended_waits():
    job = saving_job(suspend=True)
    operator = FakeOperator(job, a_cluster(job, "a"))
    for _ in range(5):
        assert operator.reconcile().phase == "Suspended"
        operator.cluster.tick()
    with_suspend(operator, False)
    operator.run(lambda found: found.phase == "Running")


def test_a_loss_while_it_is_suspended_is_recovered_first():
    operator = trained_to(6, "a", "b")
    with_suspend(operator, True)
    operator.cluster.kill_node("a")
    operator.run(lambda found: found.phase == "Suspended" and not operator.cluster.pods, 120)
    assert operator.cluster.store[-1].step == operator.cluster.records.all[-1].step
