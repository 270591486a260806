"""epochs/saving.py: how often ranks save, and which saves are made beside the usual ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.apis.heddlejob import load_job
from heddle_operator.apis.labels import SAVE_ANNOTATION
from heddle_operator.epochs.saving import LEAST_S, MOST_S, RETRY_S, checkpointing
from heddle_operator.state.actions import SendSave
from tests.fakes.operator import view_of
from tests.unit.heddle_operator.epochs.test_restoring import records, saving_job, trained_to
from worker.contract import SaveRecord

NEVER = 100_000  # steps


def annotated(operator, text):
    """The user asks for a checkpoint at a time."""
    metadata = operator.job.metadata.model_copy(update={"annotations": {SAVE_ANNOTATION: text}})
    operator.job = operator.job.model_copy(update={"metadata": metadata})


def run_on(operator, passes=12):
    for _ in range(passes):
        operator.reconcile()
        operator.cluster.tick()


def test_a_user_gets_one_checkpoint_for_each_time_at_which_one_is_asked():
    operator = trained_to(3, "a", "b", job=saving_job(NEVER))
    operator.cluster.tick(10.0)
    annotated(operator, "1970-01-01T00:00:05Z")
    run_on(operator)
    assert len(operator.cluster.store) == 1
    operator.cluster.tick(10.0)
    annotated(operator, "1970-01-01T00:00:20Z")
    run_on(operator)
    assert len(operator.cluster.store) == 2


def test_a_checkpoint_that_was_asked_for_and_cannot_be_saved_is_tried_once_a_minute():
    operator = trained_to(3, "a", "b", job=saving_job(NEVER))
    operator.cluster.tick(10.0)
    operator.cluster.store_error = "No space left on device"
    annotated(operator, "1970-01-01T00:00:05Z")
    run_on(operator)
    failed = operator.cluster.snapshot().saves.failed
    assert failed is not None
    run_on(operator, 50)
    assert operator.cluster.snapshot().saves.failed == failed
    operator.cluster.tick(RETRY_S)
    run_on(operator)
    assert operator.cluster.snapshot().saves.failed.step > failed.step
    operator.cluster.store_error = None
    operator.cluster.tick(RETRY_S)
    run_on(operator)
    assert len(operator.cluster.store) == 1


@pytest.mark.parametrize("pods_ahead_s", [-600.0, 600.0])
def test_the_clock_of_a_pod_neither_repeats_a_checkpoint_nor_ignores_one(pods_ahead_s):
    operator = trained_to(3, "a", "b", job=saving_job(NEVER))
    operator.cluster.pods_ahead_s = pods_ahead_s
    operator.cluster.tick(1000.0)
    annotated(operator, "1970-01-01T00:16:00Z")
    run_on(operator)
    assert len(operator.cluster.store) == 1
    annotated(operator, "1970-01-01T00:17:30Z")
    operator.cluster.tick(100.0)
    run_on(operator)
    assert len(operator.cluster.store) == 2


def test_an_operator_that_starts_anew_makes_the_checkpoint_that_was_asked_for_before():
    operator = trained_to(3, "a", "b", job=saving_job(NEVER))
    operator.cluster.tick(1000.0)
    annotated(operator, "1970-01-01T00:16:00Z")
    run_on(operator)
    operator.cluster.tick(100.0)
    annotated(operator, "1970-01-01T00:17:30Z")
    operator.cluster.views.clear()  # all that the one before had heard
    run_on(operator)
    assert len(operator.cluster.store) == 2


def test_a_time_that_is_none_is_said_and_asks_for_nothing():
    body = saving_job().model_dump(mode="json", by_alias=True, exclude_unset=True)
    body["metadata"]["annotations"] = {SAVE_ANNOTATION: "now"}
    job = load_job(body)
    assert job.save_asked_unix_s is None
    assert any(SAVE_ANNOTATION in note for note in job.notes)


def test_a_notice_that_would_cost_state_saves_it():
    operator = trained_to(3, "a", "b", job=saving_job(NEVER), as_pipeline=True)
    operator.cluster.tick(10.0)
    operator.cluster.drain("a", notice_s=30.0)
    operator.cluster.drain("b", notice_s=30.0)
    run_on(operator)
    assert len(operator.cluster.store) == 1


def test_a_notice_that_others_outlive_saves_nothing():
    operator = trained_to(3, "a", "b", "c", job=saving_job(NEVER))
    operator.cluster.tick(10.0)
    operator.cluster.drain("a", notice_s=30.0)
    decision = operator.reconcile()
    assert not [action for action in decision.actions if isinstance(action, SendSave)]


def settled(job):
    """(a look at a job that trains, its record)."""
    operator = trained_to(3, "a", job=job)
    cluster = operator.cluster
    return view_of(job, cluster.snapshot(), cluster.now), records(operator)[-1]


def test_an_interval_of_the_user_is_kept():
    view, record = settled(saving_job(7))
    found = checkpointing(view, record)
    assert (found.every_steps, found.every_s) == (7, None)


def with_save(view, copy_s):
    save = SaveRecord(
        epoch=1, step=4, rank=0, outcome="saved", copy_s=copy_s, ended_unix_s=1.0, num_bytes=8
    )
    (agent,) = view.observed.agents.values()
    report = agent.report.model_copy(update={"saves": (save,)})
    agents = {agent.pod: replace(agent, report=report)}
    return replace(view, observed=replace(view.observed, agents=agents))


def test_without_an_interval_dear_saves_are_seldom_and_losses_make_them_frequent():
    view, record = settled(load_job(_without_interval()))
    dear, cheap = (checkpointing(with_save(view, c), record).every_s for c in (4.0, 0.04))
    assert LEAST_S < cheap < dear <= MOST_S
    assert dear == pytest.approx(10 * cheap)  # the square root of 100
    lost = replace(record, outcome="lost", step=3)
    later = replace(view, now=view.now + 7200.0)
    often = replace(later, observed=replace(later.observed, epochs=(lost, record)))
    assert checkpointing(often, record).every_s < checkpointing(later, record).every_s


def _without_interval():
    body = saving_job().model_dump(mode="json", by_alias=True, exclude_unset=True)
    del body["spec"]["checkpoint"]["interval"]
    return body


def test_the_newest_whole_checkpoint_and_a_later_failure_are_told():
    view, _ = settled(saving_job(2))
    rows = [
        SaveRecord(epoch=1, step=4, rank=r, outcome="saved", ended_unix_s=1.0, num_bytes=5)
        for r in (0, 1)
    ]
    rows.append(rows[1].model_copy(update={"step": 6, "outcome": "failed", "error": "full"}))
    rows.append(rows[1].model_copy(update={"step": 2, "outcome": "failed", "error": "before"}))
    (agent,) = view.observed.agents.values()
    report = agent.report.model_copy(update={"saves": tuple(rows)})
    observed = replace(view.observed, agents={agent.pod: replace(agent, report=report)})
    found = observed.saves
    assert (found.newest.step, found.num_bytes, found.failed.error) == (4, 10, "full")
