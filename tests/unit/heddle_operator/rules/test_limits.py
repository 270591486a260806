"""A job ends at its deadline and after too many attempts that failed in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.controller.arbiter import PriorityArbiter
from heddle_operator.epochs.decide import decide
from heddle_operator.rules.limits import beyond_backoff, deadline_left_s
from heddle_operator.state.actions import CloseEpoch
from heddle_operator.state.snapshot import Observed
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of
from tests.fakes.shared import SharedNodes

CREATED = "2026-01-01T00:00:00Z"
OFFSET_S = 1_767_225_600.0  # the clock of the loop is 0 at the creation


def limited(**spec):
    job = a_job()
    metadata = job.metadata.model_copy(update={"creation_timestamp": CREATED})
    return job.model_copy(update={"metadata": metadata, "spec": job.spec.model_copy(update=spec)})


def with_clock(cluster):
    snapshot = cluster.snapshot
    cluster.snapshot = lambda: replace(snapshot(), clock_offset_s=OFFSET_S)


def on(job, *nodes):
    operator = FakeOperator(job, a_cluster(job, *nodes))
    with_clock(operator.cluster)
    return operator


def younger(job):
    values = {"name": "young", "uid": "young", "creation_timestamp": "2026-01-01T00:00:01Z"}
    metadata = job.metadata.model_copy(update=values)
    return job.model_copy(update={"metadata": metadata})


def test_a_deadline_counts_from_the_creation():
    job = limited(deadline_seconds=60)
    assert deadline_left_s(view_of(job, Observed(clock_offset_s=OFFSET_S), 20.0)) == 40.0
    assert deadline_left_s(view_of(limited(), Observed(), 20.0)) is None
    assert deadline_left_s(view_of(a_job(), Observed(), 20.0)) is None


def test_a_job_that_trains_ends_at_its_deadline():
    operator = on(limited(deadline_seconds=60), "a")
    operator.settle()
    assert operator.decision.look_again_s <= 60
    operator.cluster.now = 60.0
    decision = operator.reconcile()
    assert decision.phase == "Failed"
    sentence = "the job was not complete 60 seconds after it was created"
    assert decision.message == sentence
    assert operator.cluster.records.all[-1].message == sentence
    operator.run(lambda d: all(pod.phase == "ended" for pod in operator.cluster.pods.values()))


def test_a_job_that_never_started_ends_at_its_deadline_too():
    operator = on(limited(deadline_seconds=60))
    assert operator.reconcile().phase == "Pending"
    operator.cluster.now = 60.0
    assert operator.reconcile().reason == "DeadlineExceeded"
    assert operator.cluster.records.all == ()


def test_a_job_does_not_fail_at_its_deadline_while_it_is_suspended_without_an_epoch():
    operator = on(limited(deadline_seconds=60, suspend=True), "a")
    operator.cluster.now = 61.0
    decision = operator.reconcile()
    assert (decision.phase, decision.look_again_s) == ("Suspended", None)
    operator.job = limited(deadline_seconds=600)
    assert operator.settle().phase == "Running"


def test_a_pause_while_the_job_is_about_to_start_does_not_count():
    waits = limited(deadline_seconds=60)
    operator = on(waits, "a")
    operator.cluster.broken = {"a": ("scheduling", "no room")}
    operator.run(lambda _: bool(operator.cluster.pods))
    operator.job = limited(deadline_seconds=60, suspend=True)
    operator.run(lambda found: found.phase == "Suspended")
    operator.cluster.now += 500.0
    operator.job = waits
    operator.cluster.broken = {}
    assert operator.settle().phase == "Running"


def test_gpus_of_a_job_that_failed_before_its_first_epoch_are_free_for_others():
    """It is the elder, and waits for a plan that nobody writes."""
    waits = limited(deadline_seconds=60, plan_ref="none")
    elastic = waits.spec.elastic.model_copy(update={"mode": "Manual"})
    waits = waits.model_copy(update={"spec": waits.spec.model_copy(update={"elastic": elastic})})
    around = SharedNodes([waits, younger(limited())], {"a": 1}, 0, arbiter=PriorityArbiter())
    for cluster in around.clusters:
        with_clock(cluster)
    old, young = around.operators
    while around.now < 58:
        around.advance(2.0)
    assert (old.decision.phase, young.decision.phase) == ("Pending", "Pending")
    while around.now < 80:
        around.advance(2.0)
    assert (old.decision.reason, young.decision.phase) == ("DeadlineExceeded", "Running")


def test_a_job_whose_ranks_are_all_done_is_complete_whatever_the_time():
    operator = on(limited(deadline_seconds=60, steps=20), "a")
    cluster = operator.cluster
    while not any(rank.phase == "done" for _, rank in cluster.holders()):
        operator.reconcile()
        cluster.tick()
    cluster.now = 61.0
    assert operator.reconcile().phase == "Complete"


@pytest.mark.parametrize("limit", [0, 2])
def test_a_job_that_cannot_start_fails_after_so_many_attempts(limit):
    job = limited(backoff_limit=limit)
    operator = FakeOperator(job, a_cluster(job, "a"))
    cluster = operator.cluster
    cluster.broken = {"a": ("crash", "worker ended with exit status 2: no data")}
    while operator.reconcile().phase != "Failed":
        cluster.tick(1.0)
        assert cluster.now < 1000
    assert len(cluster.records.all) == limit + 1
    assert operator.decision.message == (
        f"{limit + 1} attempt{'s' if limit else ''} failed in a row, "
        f"backoffLimit is {limit}; the last: pod tiny-a-0: worker ended with exit status 2: no data"
    )


def test_a_job_that_trains_on_one_node_does_not_fail_because_another_is_bad():
    job = limited(backoff_limit=0)
    operator = FakeOperator(job, a_cluster(job, "a"))
    operator.settle()
    cluster = operator.cluster
    cluster.broken = {"b": ("image", "no image")}
    cluster.add_node("b")
    for _ in range(60):
        operator.reconcile()
        cluster.tick(2.0)
    assert operator.decision.phase == "Running"
    assert beyond_backoff(limited(), cluster.records.all) == ""


def test_steps_may_grow_while_the_job_trains_and_the_plan_stays():
    job = limited(steps=400)
    operator = FakeOperator(job, a_cluster(job, "a"))
    operator.settle()
    cluster, more = operator.cluster, limited(steps=800)
    assert cluster.agents["tiny-a-0"].directive.training.steps == 400
    operator = FakeOperator(more, cluster)
    operator.settle()
    first, second = cluster.records.all
    assert (second.reason, second.outcome, second.steps) == ("join", "live", 800)
    assert first.plan == second.plan
    assert cluster.agents["tiny-a-0"].directive.training.steps == 800
    assert not [a for a in decide(view_of(more, cluster.snapshot(), cluster.now)).actions
                if isinstance(a, CloseEpoch)]  # fmt: skip


def test_an_attempt_that_only_taught_that_a_node_has_fewer_gpus_is_no_failure():
    job = limited(backoff_limit=0)
    operator = FakeOperator(job, a_cluster(job))
    cluster = operator.cluster
    cluster.add_node("a", gpus=4)
    words = "Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
    cluster.broken = {"a": ("scheduling", words)}
    while operator.reconcile().phase != "Failed":
        cluster.tick(1.0)
        assert cluster.now < 60
    assert [record.plan.gpus for record in cluster.records.all] == [4, 2, 1]
    assert operator.decision.reason == "BackoffLimitExceeded"
