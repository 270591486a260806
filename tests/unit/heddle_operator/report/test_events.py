"""What people are told, and that they are told it once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heddle_operator.epochs.decide import decide
from heddle_operator.report.events import events_of
from heddle_operator.rules.drain import Drain
from heddle_operator.state.actions import CloseEpoch, RelatedObject
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import Failure, StartFailure
from heddle_operator.state.node_flap import NodeFlap
from heddle_operator.state.snapshot import Observed
from tests.fakes.operator import a_job, running, view_of
from worker.contract import StepRecord

IDLE = Drain()


def told(operator, drain=IDLE, **changes):
    observed = replace(operator.cluster.snapshot(), **changes)
    decision = decide(view_of(operator.job, observed, operator.cluster.now))
    return [
        (event.reason, event.message)
        for event in events_of(view_of(operator.job, observed, 0.0), decision, drain)
    ]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("live", "ReconfigurationSucceeded"),
        ("aborted", "ReconfigurationAborted"),
        ("complete", "Complete"),
        ("failed", "Failed"),
    ],
)
def test_every_outcome_of_an_epoch_is_told_with_its_reason(outcome, reason):
    decision = Decision(
        actions=(CloseEpoch(epoch=3, outcome=outcome, message="because"),),
        phase="Running",
        message="",
    )
    (event,) = events_of(view_of(a_job(), Observed(), 0.0), decision, Drain())
    assert (event.reason, event.message) == (reason, f"epoch 3 is {outcome}: because")


def test_a_job_that_trains_undisturbed_has_nothing_to_tell():
    assert told(running("a", "b")) == []


def test_a_slow_node_is_told_of():
    operator = running("a", "b")
    nodes = tuple(
        replace(node, measured_speed=0.6) if node.name == "b" else node
        for node in operator.cluster.snapshot().nodes
    )
    said = "node b computes at 0.6 of the speed that its type has"
    assert ("NodeSlow", said) in told(operator, nodes=nodes)


def test_a_gpu_type_that_differs_from_its_profile_is_told_of_once():
    operator = running("a", "b")
    nodes = tuple(replace(node, type_speed=0.5) for node in operator.cluster.snapshot().nodes)
    said = (
        "GPU type demo-fast computes at 0.5 of the speed that its profile says; plans count on it"
    )
    assert told(operator, nodes=nodes) == [("TypeSpeedDiffers", said)]


def test_an_event_about_a_node_names_it_as_its_related_object():
    operator = running("a", "b")
    observed = operator.cluster.snapshot()
    slow = tuple(replace(node, measured_speed=0.6) for node in observed.nodes)
    observed = replace(observed, nodes=slow)
    decision = decide(view_of(operator.job, observed, operator.cluster.now))
    events = events_of(view_of(operator.job, observed, 0.0), decision, IDLE)
    assert [event.related for event in events] == [
        RelatedObject("Node", "a"),
        RelatedObject("Node", "b"),
    ]


@pytest.mark.parametrize(
    ("most", "node", "is_told"),
    [(2, "c", False), (2, "a", True), (3, "c", True), (None, "c", True)],
)
def test_a_job_tells_of_nodes_that_it_uses_or_waits_for_and_leaves_others_to_others(
    most, node, is_told
):
    operator = running("a", "b", maxGPUs=most)
    flap = NodeFlap(node, began_s=0.0, pause_s=60.0, until_s=99.0)
    assert told(operator, flaps=(flap,)) == ([("NodeFlaps", flap.words)] if is_told else [])
    nodes = operator.cluster.snapshot().nodes
    others = tuple(one for one in nodes if one.name != node)
    slow = replace(nodes[0], name=node, measured_speed=0.6)
    assert ("NodeSlow" in dict(told(operator, nodes=(*others, slow)))) == is_told


def test_a_blocked_drain_is_told_once_for_each_sentence():
    operator = running("a")
    assert told(operator, Drain(blocked="has to wait")) == [("DrainBlocked", "has to wait")]
    observed = operator.cluster.snapshot()
    decision = decide(view_of(operator.job, observed, operator.cluster.now))
    keys = {
        event.key
        for sentence in ("one", "one", "two")
        for event in events_of(
            view_of(operator.job, observed, 0.0), decision, Drain(blocked=sentence)
        )
    }
    assert len(keys) == 2


def test_a_pod_that_cannot_start_is_told_with_its_epoch():
    operator = running("a")
    operator.cluster.add_node("b")
    operator.run(lambda decision: "tiny-b-0" in operator.cluster.pods)
    pods = tuple(
        replace(pod, phase="pending", problem="ErrImagePull: x") if pod.node == "b" else pod
        for pod in operator.cluster.snapshot().pods
    )
    assert ("PodsCannotStart", "epoch 2: pod tiny-b-0: ErrImagePull: x") in told(
        operator, pods=pods
    )


def test_a_record_that_the_cluster_refuses_is_told():
    assert ("RecordRefused", "it does not fit") in told(running("a"), unrecorded="it does not fit")


def test_who_is_waited_for_is_told_once_and_so_is_the_first_step_that_diverged():
    operator = running("a", "b")
    slow = Decision(
        actions=(), phase="Running", message="", slow="epoch 1 waits for the rank on GPU 0 of b"
    )
    (event,) = events_of(view_of(operator.job, operator.cluster.snapshot(), 0.0), slow, IDLE)
    assert (event.reason, event.message) == ("SlowRanks", slow.slow)
    steps = tuple(
        StepRecord(epoch=1, step=s, loss=math.nan, gradient_norm=1.0, start_s=0.0, end_s=1.0)
        for s in (4, 5)
    )
    agents = operator.cluster.snapshot().agents
    view = replace(agents["tiny-a-0"], not_finite=steps)
    found = told(operator, agents={**agents, "tiny-a-0": view})
    assert found == [("Diverged", "step 4 has loss nan, gradient norm 1")]


def events_after(failure):
    """Events of an epoch that ends because a pod did not start."""
    closing = CloseEpoch(
        epoch=3, outcome="aborted", message=failure.sentence, failures=(), start_failures=(failure,)
    )
    decision = Decision(actions=(closing,), phase="Running", message="")
    return events_of(view_of(a_job(), Observed(), 0.0), decision, Drain())


def test_each_node_on_which_pods_did_not_start_is_told_of_once_for_each_attempt():
    failure = StartFailure("b", "image", "pod tiny-b-0: ErrImagePull: no such image", 1)
    events = events_after(failure)
    assert [(event.key, event.reason) for event in events][1:] == [("left-out-3-b", "NodeLeftOut")]
    assert events[1].related == RelatedObject("Node", "b")
    assert events[1].message == f"node b is left out for some time: {failure.sentence}"


def test_a_node_that_lacks_gpus_is_told_of_with_how_many():
    failure = StartFailure("b", "scheduling", "pod tiny-b-0: Insufficient nvidia.com/gpu", 1, 8)
    events = events_after(failure)
    assert events[1].message == f"node b has no room for 8 GPUs of the job: {failure.sentence}"


@pytest.mark.parametrize(("most", "is_told"), [(2, False), (3, True)])
def test_a_node_whose_gpus_are_not_whole_is_told_of_once(most, is_told):
    operator = running("a", "b", maxGPUs=most)
    unusable = (("c", "shares its GPUs"), ("d", "is cordoned"))
    said = [("NodeLeftOut", "node c is left out: it shares its GPUs")] if is_told else []
    assert told(operator, unusable=unusable, divided=frozenset("c")) == said


@pytest.mark.parametrize(("kind", "reason"), [("fabric", "FabricHangs"), ("setup", "SetupRefused")])
def test_wires_that_a_change_did_not_get_are_told_beside_it(kind, reason):
    failure = Failure(
        kind=kind, sentence="rank 0 on a with rank 1 on b", epoch=3, step=0, gpus=(("b", 0),)
    )
    closing = CloseEpoch(epoch=3, outcome="aborted", message="because", failures=(failure,))
    decision = Decision(actions=(closing,), phase="Running", message="")
    _, event = events_of(view_of(a_job(), Observed(), 0.0), decision, Drain())
    assert (event.reason, event.related) == (reason, RelatedObject("Node", "b"))
    assert event.message == failure.sentence
