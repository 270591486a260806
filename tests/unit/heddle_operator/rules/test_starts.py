"""A node on which pods do not start holds up nobody, and is tried again with growing pauses."""

from __future__ import annotations

import dataclasses
import math

import pytest

from heddle_operator.epochs.gathering import start_trouble
from heddle_operator.rules.failures import (
    NODE_PAUSE_LIMIT_S,
    NODE_PAUSE_S,
    is_remembered,
    nodes_left_out,
)
from heddle_operator.rules.starts import start_failures, starting_nodes, troubles
from heddle_operator.state.actions import CloseEpoch
from heddle_operator.state.epoch_record import StartFailure
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import ObservedPod, RefusedPod
from tests.fakes.operator import (
    FakeOperator,
    a_cluster,
    a_job,
    running,
    running_on,
    view_of,
    waiting,
)

NO_IMAGE = ("image", "ErrImagePull: registry.example/worker:1 not found")
NO_CPU = ("scheduling", "Unschedulable: 0/4 nodes are available: 1 Insufficient cpu")
NO_NETWORK = ("sandbox", "FailedCreatePodSandBox: plugin type bridge failed")
LIMITS = Settings()
TICK_S = 0.5


def refused_on_b(operator, message, since_s=0.0, tried_s=0.0):
    """The cluster as observed without a pod; times are those after the adoption."""
    adopted_s = operator.cluster.records.all[-1].adopted_s
    row = RefusedPod("tiny-b-0", "b", message, adopted_s + tried_s, adopted_s + since_s)
    return dataclasses.replace(operator.cluster.snapshot(), pods=(), refusals=(row,))


def at(operator, seconds, tick_s=TICK_S):
    """Let so much time pass; a step is trained at each tick."""
    until_s = operator.cluster.now + seconds
    while operator.cluster.now < until_s:
        operator.reconcile()
        operator.cluster.tick(tick_s)


def trained_nodes(cluster):
    live = [record for record in cluster.records.all if record.outcome == "live"]
    return live[-1].plan.nodes if live else ()


def pods_ever(cluster, node):
    return cluster.created.count(f"tiny-{node}-0")


def left_out(operator):
    found = nodes_left_out(view_of(operator.job, operator.cluster.snapshot(), operator.cluster.now))
    return {out.node: out for out in found}


def test_a_job_starts_on_what_works_though_each_other_node_is_broken_in_its_own_way():
    operator = waiting("a", "b", "c", "d")
    cluster = operator.cluster
    cluster.broken = {"b": NO_IMAGE, "c": NO_CPU, "d": NO_NETWORK}
    at(operator, 15.0)
    assert trained_nodes(cluster) == ("a",)
    assert [record.outcome for record in cluster.records.all] == ["aborted", "live"]
    found = left_out(operator)
    assert {node: (out.cause, out.times) for node, out in found.items()} == {
        "b": ("image", 1), "c": ("scheduling", 1), "d": ("sandbox", 1),
    }  # fmt: skip
    assert found["b"].sentence == f"pod tiny-b-0: {NO_IMAGE[1]}"
    assert set(cluster.pods) == {"tiny-a-0"}


def test_a_bad_node_is_tried_again_after_growing_pauses_and_joins_once_it_works():
    operator = waiting("a", "b")
    cluster = operator.cluster
    cluster.broken = {"b": NO_IMAGE}
    at(operator, 30 * 60, 4)
    assert trained_nodes(cluster) == ("a",)
    assert pods_ever(cluster, "b") == 5  # 0, 1, 3, 7 and 15 minutes after the start
    out = left_out(operator)["b"]
    assert out.times == 5
    cluster.broken = {}
    at(operator, out.until_s - cluster.now - 4, 4)
    assert trained_nodes(cluster) == ("a",)
    at(operator, 10)
    assert trained_nodes(cluster) == ("a", "b")
    assert left_out(operator) == {}


def test_a_node_whose_kubelet_rejects_the_pod_is_tried_again_within_seconds():
    operator, cluster = running_on("a")
    cluster.pulls_until_s["b"] = cluster.now + 180
    cluster.add_node("b")
    operator.run(lambda _: "tiny-b-0" in cluster.pods)
    why = "UnexpectedAdmissionError: Available: 0"
    cluster.pods["tiny-b-0"] = dataclasses.replace(
        cluster.pods["tiny-b-0"], phase="ended", cause="rejected", problem=why
    )
    at(operator, TICK_S)
    out = left_out(operator)["b"]
    assert (out.cause, out.until_s - cluster.now) == ("rejected", pytest.approx(5, abs=1))
    cluster.pulls_until_s = {}
    at(operator, 10)
    assert trained_nodes(cluster) == ("a", "b")


@pytest.mark.parametrize("leaving_at_s", [None, 0.0, 300.0])
def test_a_pod_that_does_not_go_holds_up_nobody_and_its_node_joins_once_it_is_gone(leaving_at_s):
    operator = waiting("a", "b")
    cluster = operator.cluster
    cluster.pods["tiny-b-0"] = ObservedPod(
        name="tiny-b-0", node="b", ordinal=0, gpus=1, phase="running",
        deleting=True, leaving_at_s=leaving_at_s,
    )  # fmt: skip
    limit_s = (leaving_at_s or 0.0) + LIMITS.pod_timeout_s
    at(operator, limit_s - 4, 4)
    assert trained_nodes(cluster) == ()
    at(operator, 20, 1)
    assert trained_nodes(cluster) == ("a",)
    out = left_out(operator)["b"]
    assert (out.cause, out.times) == ("slow", 1)
    assert out.sentence == "pod tiny-b-0 was told to end, and is still there after 600 s"
    at(operator, NODE_PAUSE_S, 1)
    assert trained_nodes(cluster) == ("a",)
    if leaving_at_s is not None:  # it was to be gone long before: nobody waits for it once more
        assert left_out(operator)["b"].times == 2
    del cluster.pods["tiny-b-0"]
    at(operator, 2 * NODE_PAUSE_S + 20, 1)
    assert trained_nodes(cluster) == ("a", "b")


def test_pauses_have_a_limit_and_another_operator_knows_of_them():
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    cluster = operator.cluster
    cluster.broken = {"b": NO_IMAGE}
    at(operator, 30)
    again = FakeOperator(job, cluster)
    record = cluster.records.all[0]
    assert left_out(again)["b"].until_s == record.closed_s + NODE_PAUSE_S
    observed = cluster.snapshot()
    many = dataclasses.replace(observed, epochs=(record,) * 12)
    (out,) = nodes_left_out(view_of(job, many, record.closed_s))
    assert out.until_s == record.closed_s + NODE_PAUSE_LIMIT_S
    assert is_remembered(record, record.closed_s + NODE_PAUSE_LIMIT_S)


def test_another_spec_and_a_node_that_went_and_came_again_are_tried_at_once():
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    cluster = operator.cluster
    cluster.broken = {"b": NO_IMAGE}
    at(operator, 20)
    assert set(left_out(operator)) == {"b"}
    metadata = job.metadata.model_copy(update={"generation": 2})
    corrected = job.model_copy(update={"metadata": metadata})
    assert nodes_left_out(view_of(corrected, cluster.snapshot(), cluster.now)) == ()
    cluster.kill_node("b")
    at(operator, 1)
    cluster.broken = {}
    cluster.add_node("b")
    at(operator, 10)
    assert trained_nodes(cluster) == ("a", "b")


@pytest.mark.parametrize("first", [0, 20])
def test_a_good_node_joins_while_a_bad_one_stays_bad(first):
    operator, cluster = running_on("a")
    cluster.broken = {"b": NO_IMAGE}
    cluster.add_node("b")
    at(operator, first)
    cluster.add_node("c")
    at(operator, 15)
    assert trained_nodes(cluster) == ("a", "c")


@pytest.mark.parametrize("first", [0, 5, 20])
def test_a_good_node_joins_while_another_pulls_its_image_and_that_one_joins_when_it_is_ready(first):
    operator, cluster = running_on("a", cooldownSeconds=0)
    cluster.pulls_until_s["b"] = cluster.now + 180
    cluster.add_node("b")
    at(operator, first)
    cluster.add_node("c")
    at(operator, 15)
    assert trained_nodes(cluster) == ("a", "c")
    assert left_out(operator) == {}
    at(operator, 175 - first)
    assert trained_nodes(cluster) == ("a", "b", "c")
    assert pods_ever(cluster, "b") == 1


def test_a_start_waits_for_pods_that_pull_only_so_long_as_the_others_do_not_suffice():
    operator = waiting("a", "b", "c", minGPUs=2)
    cluster = operator.cluster
    cluster.pulls_until_s = {"b": 120.0, "c": 200.0}
    at(operator, 110)
    assert trained_nodes(cluster) == ()
    at(operator, 15)
    assert trained_nodes(cluster) == ("a", "b")
    at(operator, 80)
    assert trained_nodes(cluster) == ("a", "b", "c")


def test_the_decision_to_go_without_a_late_node_is_the_only_one_of_its_pass():
    """What the epoch that is given up still asks for would only be undone in the next pass."""
    operator = waiting("a", "b", "c", minGPUs=2)
    operator.cluster.pulls_until_s = {"c": 200.0}
    passes = []
    while not any(isinstance(action, CloseEpoch) for action in operator.decision.actions):
        passes.append(operator.reconcile())
        operator.cluster.tick(TICK_S)
    (close,) = passes[-1].actions
    assert close.outcome == "aborted"
    assert passes[-1].message == close.message


def test_a_start_waits_no_longer_for_the_holders_that_the_job_asks_for():
    """Nothing trains yet, and no state is there that could be lost."""
    operator = waiting("a", "b", minHolders=2)
    operator.cluster.pulls_until_s = {"b": 200.0}
    at(operator, 60)
    assert trained_nodes(operator.cluster) == ("a",)
    at(operator, 160)
    assert trained_nodes(operator.cluster) == ("a", "b")


def test_a_start_does_not_give_way_to_nodes_that_failed_once_and_may_be_tried_again():
    operator = waiting("a", "b")
    cluster = operator.cluster
    cluster.broken = {"b": NO_CPU}
    cluster.pulls_until_s = {"a": 110.0}
    at(operator, 105)
    assert pods_ever(cluster, "b") == 1
    at(operator, 10)
    assert trained_nodes(cluster) == ("a",)


def test_a_node_that_trains_is_never_left_out_with_what_trains_there():
    operator, cluster = running_on("a")
    cluster.broken = {"a": NO_IMAGE}
    cluster.nodes["a"] = dataclasses.replace(cluster.nodes["a"], gpus=2)
    at(operator, 30)
    assert set(left_out(operator)) == {"a"}
    assert [record.reason for record in cluster.records.all] == ["start", "join"]
    assert cluster.agents["tiny-a-0"].ranks[0].phase == "training"


def test_the_pods_that_train_are_not_starting_though_their_agents_do_not_answer():
    _, cluster = running_on("a", "b")
    hosts = cluster.records.all[-1].hosts
    observed = dataclasses.replace(cluster.snapshot(), agents={})
    assert starting_nodes(observed, hosts) == frozenset()
    assert starting_nodes(observed, ()) == {"a", "b"}


def test_what_the_cluster_refuses_is_a_trouble_of_its_node():
    operator = waiting("a", "b")
    operator.run(lambda _: bool(operator.cluster.records.all))
    observed = refused_on_b(operator, "pods is forbidden: no")
    (trouble,) = troubles(operator.cluster.records.all[-1], observed)
    assert (trouble.node, trouble.cause) == ("b", "refused")
    assert trouble.sentence == "pod tiny-b-0 is refused: pods is forbidden: no"
    before = refused_on_b(operator, "pods is forbidden: no", tried_s=-1.0)
    assert troubles(operator.cluster.records.all[-1], before) == ()


@pytest.mark.parametrize(("since_s", "failures"), [(20.0, 0), (15.0, 1), (math.inf, 0)])
def test_a_refusal_counts_from_the_first_one_and_never_if_it_only_passes(since_s, failures):
    """The adoption may be long ago when the first pod is refused."""
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    operator.run(lambda _: bool(operator.cluster.records.all))
    record = operator.cluster.records.all[-1]
    observed = refused_on_b(operator, "failed calling webhook", since_s, tried_s=25.0)
    view = view_of(job, observed, record.adopted_s + 27.0)
    assert start_trouble(record, observed) == "pod tiny-b-0 is refused: failed calling webhook"
    assert len(start_failures(view, record)) == failures


def test_a_failure_is_written_with_the_words_of_the_cluster_and_the_generation_of_the_job():
    operator = waiting("a", "b")
    cluster = operator.cluster
    cluster.broken = {"b": NO_CPU}
    closed = []
    while not closed:
        closed = [a for a in operator.reconcile().actions if isinstance(a, CloseEpoch)]
        cluster.tick(TICK_S)
    sentence = f"pod tiny-b-0: {NO_CPU[1]}"
    assert closed[0].start_failures == (StartFailure("b", "scheduling", sentence, 0, 1),)
    assert closed[0].message == sentence


NO_GPU = ("scheduling", "Unschedulable: 0/4 nodes are available: 1 Insufficient nvidia.com/gpu")


def lacking(gpus, **elastic):
    """A job on nodes a, and b of so many GPUs, for none of whose pods the scheduler has them."""
    operator = waiting("a", **elastic)
    operator.cluster.add_node("b", gpus=gpus)
    operator.cluster.broken = {"b": NO_GPU}
    return operator


def test_of_a_node_that_lacks_gpus_half_as_many_are_tried():
    operator = lacking(4)
    at(operator, 12)
    out = left_out(operator)["b"]
    assert (out.gpus, out.times, out.sentence) == (2, 1, f"pod tiny-b-0: {NO_GPU[1]}")
    at(operator, 60)
    refused = [f.gpus for r in operator.cluster.records.all for f in r.start_failures]
    assert refused == [4, 2, 1]
    assert left_out(operator)["b"].gpus == 0
    assert trained_nodes(operator.cluster) == ("a",)


def test_that_a_node_lacks_gpus_is_still_known_when_fewer_are_used_there():
    operator = lacking(4)
    at(operator, 12)
    operator.cluster.broken = {}
    at(operator, 12)
    live = operator.cluster.records.all[-1]
    assert (live.outcome, live.plan.gpus, trained_nodes(operator.cluster)) == (
        "live",
        3,
        ("a", "b"),
    )
    assert left_out(operator)["b"].gpus == 2
    at(operator, NODE_PAUSE_S)
    assert operator.cluster.records.all[-1].plan.gpus == 5
    assert left_out(operator) == {}


@pytest.mark.parametrize(
    ("words", "gpus"),
    [(NO_CPU[1], 2), ("Unschedulable: 0/4 nodes are available: 1 had untolerated taint", 0)],
)
def test_what_a_pod_asks_for_with_its_gpus_is_less_for_fewer(words, gpus):
    operator = lacking(4)
    operator.cluster.broken = {"b": ("scheduling", words)}
    at(operator, 15)
    assert left_out(operator)["b"].gpus == gpus


@pytest.mark.parametrize(
    ("message", "gpus"),
    [
        ("exceeded quota: q, requested: requests.cpu=32, used: cpu=0, limited: cpu=16", 4),
        ("maximum cpu usage per Pod is 16, but limit is 32", 4),
        ("[maximum memory usage per Container is 64Gi, but limit is 256Gi]", 4),
        ("minimum cpu usage per Pod is 1, but request is 500m", 0),
        ('violates PodSecurity "restricted:latest"', 0),
    ],
)
def test_a_pod_that_is_refused_for_its_size_may_have_fewer_gpus(message, gpus):
    operator = lacking(4)
    operator.run(lambda _: bool(operator.cluster.records.all))
    observed = refused_on_b(operator, f'pods "tiny-b-0" is forbidden: {message}')
    (trouble,) = troubles(operator.cluster.records.all[-1], observed)
    assert (trouble.cause, trouble.gpus) == ("refused", gpus)


def test_further_gpus_that_are_refused_count_with_those_that_the_job_has_there():
    operator = running("a")
    operator.cluster.nodes["a"] = dataclasses.replace(operator.cluster.nodes["a"], gpus=4)
    operator.cluster.broken = {"a": NO_GPU}
    at(operator, 15)
    (failure,) = (f for r in operator.cluster.records.all for f in r.start_failures)
    assert failure.gpus == 4
    at(operator, 30)
    assert operator.cluster.holders()
