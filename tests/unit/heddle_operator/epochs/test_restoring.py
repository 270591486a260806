"""epochs/restoring.py: a job that lost its state goes on from the newest checkpoint it can take."""

from __future__ import annotations

import pytest

from heddle_operator.apis.heddlejob import HeddleJob, load_job
from tests.fakes.operator import FakeOperator, a_cluster, a_job, running

EVERY = 4


def saving_job(interval=EVERY, **spec) -> HeddleJob:
    """The usual job, with checkpoints."""
    body = a_job().model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    body["spec"] |= {"checkpoint": {"path": "/saves", "interval": {"steps": interval}}, **spec}
    return load_job(body)


def trained_to(steps, *nodes, job=None, as_pipeline=False):
    """An operator whose job has trained so many steps at least."""
    job = job or saving_job()
    operator = FakeOperator(job, a_cluster(job, *nodes, as_pipeline=as_pipeline))
    operator.run(lambda _: any(step >= steps for step in operator.cluster.training_steps()))
    return operator


def live_again(operator, after):
    """Run until a later epoch than `after` is live; its record."""
    operator.run(lambda _: any(r.epoch > after for r in records(operator) if r.outcome == "live"))
    return records(operator)[-1]


def records(operator):
    return operator.cluster.records.all


def reasons(operator):
    return [event.reason for event in operator.cluster.events.values()]


def lose_everything(operator, *nodes):
    for node in nodes:
        operator.cluster.kill_node(node)
    operator.cluster.tick()


def test_a_job_that_lost_all_nodes_goes_on_from_its_newest_checkpoint():
    operator = trained_to(10, "a", "b")
    lose_everything(operator, "a", "b")
    operator.reconcile()
    operator.cluster.add_node("c")
    record = live_again(operator, 1)
    assert operator.cluster.records.all[0].outcome == "lost"
    assert record.reason == "start"
    assert record.seal.restore.step == 8
    assert record.seal.restore.path == "/saves/tiny"
    assert {rank.step for _, rank in operator.cluster.holders()} >= {8}
    assert {"StateLost", "Restored"} <= set(reasons(operator))
    planned = [e for e in operator.cluster.events.values() if e.reason == "PlanSelected"]
    assert "goes on from a checkpoint" in planned[-1].message


def test_ranks_that_survive_without_the_whole_state_are_replaced():
    operator = trained_to(10, "a", "b", as_pipeline=True)
    lose_everything(operator, "a")
    record = live_again(operator, 1)
    lost = operator.cluster.records.all[0]
    assert (lost.outcome, lost.step) == ("lost", 10)
    assert record.seal.restore.step == 8
    (event,) = [e for e in operator.cluster.events.values() if e.reason == "Restored"]
    assert "2 steps are trained again" in event.message
    assert all(rank.epoch == record.epoch for _, rank in operator.cluster.holders())


def test_without_a_whole_checkpoint_the_state_is_lost():
    operator = trained_to(2, "a")
    lose_everything(operator, "a")
    operator.reconcile()
    operator.cluster.add_node("b")
    decision = operator.run(lambda found: found.phase == "Failed")
    assert decision.reason == "StateLost"


def test_a_job_without_a_path_ends_as_before():
    operator = running("a")
    lose_everything(operator, "a")
    decision = operator.run(lambda found: found.phase == "Failed")
    assert decision.reason == "StateLost"


def test_a_damaged_block_sends_the_ranks_to_the_next_older_one():
    operator = trained_to(10, "a")
    operator.cluster.damaged = {"e1s8"}
    lose_everything(operator, "a")
    operator.reconcile()
    operator.cluster.add_node("b")
    record = live_again(operator, 2)
    assert record.seal.restore.step == 4


@pytest.mark.parametrize("code", ["other", "newer"])
def test_a_job_never_starts_anew_beside_a_checkpoint_of_another_job(code):
    first = trained_to(10, "a")
    job = saving_job()
    operator = FakeOperator(job, a_cluster(job, "b"))
    operator.cluster.store = list(first.cluster.store)
    operator.cluster.refused = {"e1s8": (code, "it has another batch")}
    decision = operator.run(lambda found: found.reason is not None)
    assert (decision.phase, decision.reason) == ("Preparing", "CheckpointRefused")
    assert operator.cluster.training_steps() == set()
    operator.cluster.refused = {}
    operator.cluster.tick(10.0)
    assert live_again(operator, 0).seal.restore.step == 8


def test_a_new_job_of_the_same_name_goes_on():
    first = trained_to(10, "a")
    job = saving_job()
    operator = FakeOperator(job, a_cluster(job, "b"))
    operator.cluster.store = [one.model_copy(update={"epoch": 5}) for one in first.cluster.store]
    record = live_again(operator, 0)
    assert (record.epoch, record.seal.restore.epoch, record.seal.restore.step) == (1, 5, 8)
    operator.run(lambda _: max(operator.cluster.training_steps(), default=0) >= 13)
    assert (operator.cluster.store[-1].epoch, operator.cluster.store[-1].step) == (6, 12)


def test_after_a_loss_a_job_asks_for_the_saves_of_its_own_run():
    job = saving_job()
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "a-run"})})
    operator = trained_to(10, "a", job=job)
    assert {action.look.run for action in operator.cluster.looks} == {None}
    asked = len(operator.cluster.looks)
    lose_everything(operator, "a")
    operator.reconcile()
    operator.cluster.add_node("b")
    live_again(operator, 1)
    assert {action.look.run for action in operator.cluster.looks[asked:]} == {"a-run"}


def test_pods_that_see_different_checkpoints_are_waited_for():
    operator = trained_to(10, "a", "b")
    lose_everything(operator, "a", "b")
    operator.reconcile()
    operator.cluster.add_node("c")
    operator.cluster.add_node("d")
    operator.cluster.blind = {"tiny-d-0"}
    decision = operator.run(lambda found: found.reason == "CheckpointsDiffer")
    assert "tiny-d-0" in decision.message
    operator.cluster.blind = set()
    operator.cluster.tick(10.0)
    assert live_again(operator, 1).seal.restore.step == 8


def test_a_folder_that_cannot_be_read_is_waited_for():
    operator = trained_to(10, "a")
    lose_everything(operator, "a")
    operator.reconcile()
    operator.cluster.add_node("b")
    operator.cluster.read_error = "input/output error"
    operator.run(lambda found: found.reason == "CheckpointUnread")
    operator.cluster.read_error = None
    operator.cluster.tick(10.0)
    assert live_again(operator, 1).seal.restore.step == 8


def test_restarts_without_progress_count_for_the_backoff_limit():
    operator = trained_to(5, "a", job=saving_job(backoffLimit=1))
    for node in ("b", "c", "d"):
        lose_everything(operator, *operator.cluster.nodes)
        operator.reconcile()
        operator.cluster.add_node(node)
        operator.run(lambda found: found.phase == "Failed" or operator.cluster.training_steps())
        if operator.decision.phase == "Failed":
            break
    assert operator.decision.reason == "BackoffLimitExceeded"


def test_restarts_that_make_progress_never_end_the_job():
    operator = trained_to(5, "a", job=saving_job(backoffLimit=1))
    for number, node in enumerate(("b", "c", "d"), 2):
        lose_everything(operator, *operator.cluster.nodes)
        operator.reconcile()
        operator.cluster.add_node(node)
        goal = number * EVERY + 1
        operator.run(lambda _, goal=goal: max(operator.cluster.training_steps(), default=0) >= goal)
    assert operator.decision.phase == "Running"
