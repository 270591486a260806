"""The conditions say what holds, with one word and one sentence; times change only with them."""

from __future__ import annotations

import dataclasses
import math

import pytest

from heddle_operator.epochs.decide import decide
from heddle_operator.report.conditions import HolderCount, conditions_of, live_record, with_times
from heddle_operator.rules.drain import Drain
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import Failure
from heddle_operator.state.snapshot import AgentView, Observed, ObservedPod, RefusedPod
from tests.fakes.operator import a_cluster, a_job, running, view_of, waiting
from worker.contract import StepRecord

IDLE = Drain()


def conditions(operator, holders=None, drain=IDLE, decision=None, **changes):
    """(holds, reason, message) by type."""
    observed = dataclasses.replace(operator.cluster.snapshot(), **changes)
    decision = decision or decide(view_of(operator.job, observed, operator.cluster.now))
    rows = conditions_of(view_of(operator.job, observed, 0.0), decision, holders, drain, 0, "")
    return {row.kind: (row.holds, row.reason, row.message) for row in rows}


def changed_pod(operator, name, **changes):
    return tuple(
        dataclasses.replace(pod, **changes) if pod.name == name else pod
        for pod in operator.cluster.snapshot().pods
    )


def test_of_a_job_that_trains_well_four_conditions_hold():
    found = conditions(running("a", "b"))
    assert {kind: reason for kind, (holds, reason, _) in found.items() if holds} == {
        "Ready": "Training",
        "Accepted": "Valid",
        "Planned": "PlanAdopted",
        "Running": "Training",
    }
    assert found["Degraded"] == (False, "Healthy", "")
    assert found["DrainBlocked"] == (False, "NothingBlocked", "")


def test_a_job_without_gpus_says_why():
    job, observed = a_job(), Observed(unusable=(("n1", "is cordoned"),))
    decision = decide(view_of(job, observed, 0.0))
    ready, _, planned, *_ = conditions_of(
        view_of(job, observed, 0.0), decision, None, Drain(), 0, ""
    )
    for kind, row in (("Ready", ready), ("Planned", planned)):
        assert (row.kind, row.holds, row.reason) == (kind, False, "InsufficientGPUs")
    assert "0 GPUs are usable, minGPUs is 1 (n1 is cordoned)" in planned.message


def test_the_condition_accepted_holds_the_notes_of_the_job():
    view = view_of(a_job().noted("an annotation is no time"), Observed(), 0.0)
    accepted = conditions_of(view, decide(view), None, Drain(), 0, "")[1]
    assert (accepted.kind, accepted.holds, accepted.reason) == ("Accepted", True, "Valid")
    assert "an annotation is no time" in accepted.message


def test_a_condition_keeps_its_time_until_its_status_changes():
    operator = running("a")
    observed = operator.cluster.snapshot()

    def rows(before, now, decision):
        found = conditions_of(view_of(operator.job, observed, 0.0), decision, None, Drain(), 0, "")
        return with_times(found, {"conditions": before}, 4, now)

    trains = Decision(actions=(), phase="Running", message="epoch 1 is live")
    first = rows([], "T1", trains)
    assert rows(first, "T2", trains) == first
    assert {row["observedGeneration"] for row in first} == {4}
    ended = {
        row["type"]: row["lastTransitionTime"]
        for row in rows(
            first, "T3", Decision(actions=(), phase="Complete", message="all steps are trained")
        )
    }
    assert (ended["Complete"], ended["Running"], ended["Accepted"]) == ("T3", "T3", "T1")


def test_fewer_holders_than_wanted_degrade_a_job():
    found = conditions(running("a", minHolders=2), HolderCount(1, 7))["Degraded"]
    assert found[:2] == (True, "TooFewHolders")
    assert "is on 1 node only, minHolders is 2" in found[2]


def test_why_the_plan_has_fewer_holders_than_it_should_is_said():
    operator = running("a", minHolders=2)
    note = "this plan reaches 1: the composition has 1 node"
    replies = operator.cluster.replies
    operator.cluster.replies = {
        k: dataclasses.replace(r, notes=(note,)) for k, r in replies.items()
    }
    found = conditions(operator, HolderCount(1, 7))["Degraded"]
    assert found[2].endswith(f"minHolders is 2; the planner says: {note}")


def test_a_pod_that_cannot_start_is_in_the_conditions_while_the_job_trains():
    operator = running("a")
    operator.cluster.add_node("b")
    operator.run(lambda decision: "tiny-b-0" in operator.cluster.pods)
    pods = changed_pod(operator, "tiny-b-0", phase="pending", problem="ImagePullBackOff: x")
    found = conditions(operator, pods=pods)
    assert found["Running"][0]
    assert found["Reconfiguring"][:2] == (True, "PodsCannotStart")
    assert found["Degraded"] == (True, "PodsCannotStart", "pod tiny-b-0: ImagePullBackOff: x")


def test_an_epoch_that_trains_before_its_record_says_so_is_planned_and_waits_for_no_pod():
    operator = running("a")
    (record,) = operator.cluster.snapshot().epochs
    opened = dataclasses.replace(record, outcome="open", closed_s=None)
    refused = RefusedPod(
        name="tiny-a-1", node="a", message="no quota", at_s=record.adopted_s, since_s=0.0
    )
    decision = Decision(actions=(), phase="Switching", message="the ranks switch")
    found = conditions(operator, epochs=(opened,), decision=decision, refusals=(refused,))
    assert found["Planned"][:2] == (True, "PlanAdopted")
    assert found["Degraded"][1] == "Healthy"


def test_a_record_that_the_cluster_refuses_degrades_a_job_that_trains():
    operator = running("a")
    found = conditions(operator, unrecorded="it does not fit")
    assert found["Running"][0]
    assert found["Degraded"] == (True, "RecordRefused", "it does not fit")


def test_an_unhealthy_gpu_and_a_silent_agent_degrade_a_job():
    operator = running("a", "b")
    pods = changed_pod(operator, "tiny-b-0", notice="its GPU 3 is unhealthy")
    found = conditions(operator, pods=pods)["Degraded"]
    assert found == (True, "PodMustLeave", "pod tiny-b-0 must leave: its GPU 3 is unhealthy")
    operator.cluster.unreachable["tiny-a-0"] = operator.cluster.now
    found = conditions(operator)["Degraded"]
    assert found == (True, "AgentUnreachable", "the agent of pod tiny-a-0 does not answer")


@pytest.mark.parametrize(("created_s", "is_degraded"), [(-100.0, False), (-1000.0, True)])
def test_an_agent_that_starts_degrades_no_job_until_its_pod_is_late(created_s, is_degraded):
    operator = running("a")
    starts = ObservedPod(
        name="tiny-b-0", node="b", ordinal=0, gpus=2, phase="running", created_s=created_s
    )
    observed = operator.cluster.snapshot()
    agents = {"tiny-b-0": AgentView(pod="tiny-b-0", report=None, unreachable_since_s=0.0)}
    found = conditions(
        operator, pods=(*observed.pods, starts), agents={**observed.agents, **agents}
    )
    assert found["Degraded"][0] is is_degraded
    assert found["Degraded"][1] == ("AgentUnreachable" if is_degraded else "Healthy")


def test_a_blocked_drain_is_a_condition_of_its_own():
    operator = running("a")
    found = conditions(operator, drain=Drain(blocked="a drain of node a has to wait"))
    assert found["DrainBlocked"] == (True, "JobNeedsNode", "a drain of node a has to wait")
    assert not found["Degraded"][0]


@pytest.mark.parametrize("phase", ["Complete", "Failed"])
def test_of_an_ended_job_only_its_end_holds(phase):
    operator = running("a", minHolders=2)
    reason = "StateLost" if phase == "Failed" else None
    decision = Decision(actions=(), phase=phase, message="x", reason=reason)
    found = conditions(operator, HolderCount(1, 1), Drain(blocked="x"), decision)
    holding = {kind for kind, (holds, _, _) in found.items() if holds}
    stalled = {"Stalled"} if phase == "Failed" else set()
    assert holding - {"Ready"} == {"Accepted", "Planned", phase} | stalled
    assert found["Ready"] == (phase == "Complete", reason or phase, "x")
    assert found["Failed"][1] == ("StateLost" if phase == "Failed" else phase)


def test_the_live_record_is_the_newest_that_lived():
    operator = running("a")
    assert live_record(operator.cluster.snapshot()).epoch == 1
    assert live_record(Observed()) is None


def odd_step(step, loss=math.nan):
    return StepRecord(epoch=1, step=step, loss=loss, gradient_norm=math.inf, start_s=0.0, end_s=1.0)


def with_odd_steps(operator, *steps):
    agents = operator.cluster.snapshot().agents
    view = dataclasses.replace(agents["tiny-a-0"], not_finite=tuple(map(odd_step, steps)))
    return {**agents, "tiny-a-0": view}


def test_skipped_steps_are_counted_and_the_newest_is_told():
    operator = running("a", "b")
    assert conditions(operator)["Diverged"] == (False, "Finite", "")
    observed = dataclasses.replace(
        operator.cluster.snapshot(), agents=with_odd_steps(operator, 3, 5)
    )
    decision = decide(view_of(operator.job, observed, operator.cluster.now))
    rows = conditions_of(view_of(operator.job, observed, 0.0), decision, None, IDLE, 2, "")
    (row,) = [row for row in rows if row.kind == "Diverged"]
    words = "2 steps were not finite; step 5 has loss nan and gradient norm inf"
    assert (row.holds, row.reason, row.message) == (True, "NotFinite", words)


@pytest.mark.parametrize("reason", ["StateLost", "Diverged", "DeterministicError"])
def test_a_failed_job_says_in_one_word_why(reason):
    operator = running("a")
    decision = Decision(actions=(), phase="Failed", message="because", reason=reason)
    found = conditions(operator, decision=decision)
    assert found["Failed"] == (True, reason, "because")
    assert found["Diverged"][0] == (reason == "Diverged")


def test_who_is_waited_for_and_what_cannot_be_written_degrade_the_job():
    operator = running("a", "b")
    slow = Decision(
        actions=(), phase="Running", message="", slow="epoch 1 waits for the rank on GPU 0 of b"
    )
    assert conditions(operator, decision=slow)["Degraded"] == (True, "SlowRanks", slow.slow)
    values = {"phase": "saving", "error_kind": "output", "error": "No space left on device"}
    operator.cluster.agents["tiny-a-0"].change(0, **values)
    words = "the final weights cannot be written: No space left on device"
    assert conditions(operator)["Degraded"] == (True, "OutputFailed", words)


def test_nodes_left_out_are_named_with_the_words_of_the_cluster_and_when_they_are_tried_again():
    operator = waiting("a", "b")
    operator.cluster.broken = {"b": ("image", "ErrImagePull: no such image")}
    while not operator.cluster.records.all or operator.cluster.records.all[0].outcome == "open":
        operator.reconcile()
        operator.cluster.tick(1.0)
    closed_s = operator.cluster.records.all[0].closed_s
    found = conditions(operator, clock_offset_s=86_400.0 - closed_s)["NodesLeftOut"]
    assert found == (
        *(True, "PodsCannotStart"),
        "b: pod tiny-b-0: ErrImagePull: no such image; tried again at 1970-01-02T00:01:00Z",
    )
    assert conditions(running("a"))["NodesLeftOut"] == (False, "NothingLeftOut", "")


def test_a_node_whose_gpus_are_not_whole_is_left_out_in_one_sentence():
    said = (("c", "shares its GPUs"), ("d", "is cordoned"))
    found = conditions(running("a"), unusable=said, divided=frozenset("c"))["NodesLeftOut"]
    assert found == (True, "GPUsDivided", "c: it shares its GPUs")


@pytest.mark.parametrize(("debounce", "is_told"), [(3600, True), (20, False)])
def test_a_node_that_joined_too_lately_to_be_used_is_told_with_the_time(debounce, is_told):
    operator = running("a")
    elastic = operator.job.spec.elastic.model_copy(update={"join_debounce_seconds": debounce})
    spec = operator.job.spec.model_copy(update={"elastic": elastic})
    operator.job = operator.job.model_copy(update={"spec": spec})
    lately = dataclasses.replace(operator.cluster.nodes["a"], name="b", joined_at_s=0.0)
    nodes = (operator.cluster.nodes["a"], lately)
    found = conditions(operator, nodes=nodes, clock_offset_s=86_400.0)["NodesLeftOut"]
    words = (
        "b: it joined lately; joinDebounceSeconds lets it be used at 1970-01-02T01:00:00Z"
        if is_told
        else ""
    )
    assert found == (is_told, "JoinedLately" if is_told else "NothingLeftOut", words)


def test_a_job_that_waits_for_nodes_that_joined_lately_names_them():
    job = a_job(joinDebounceSeconds=3600)
    nodes = tuple(a_cluster(job, "a").nodes.values())
    decision = decide(view_of(job, Observed(nodes=nodes), 1.0))
    assert decision.message.endswith("(a joined within joinDebounceSeconds (3600))")


def test_a_job_whose_plan_uses_a_slow_node_is_degraded():
    operator = running("a", "b")
    for name, reason in (("b", "NodeSlow"), ("c", "Healthy")):
        slow = dataclasses.replace(operator.cluster.nodes["b"], name=name, measured_speed=0.6)
        nodes = (operator.cluster.nodes["a"], slow)
        assert conditions(operator, nodes=nodes)["Degraded"][1] == reason


def test_a_job_that_trains_on_beside_a_refused_spec_is_not_ready():
    operator = running("a")
    view = view_of(operator.job, operator.cluster.snapshot(), operator.cluster.now)
    ready = conditions_of(view, decide(view), None, IDLE, 0, "spec.steps: no")[0]
    assert (ready.kind, ready.holds, ready.reason) == ("Ready", False, "InvalidSpec")


@pytest.mark.parametrize(
    ("wire", "holds", "reason"),
    [
        ("gloo", True, "OnProcessor"),
        ("staged", True, "NeverRunOnGPU"),
        ("nccl", True, "NeverRunOnGPU"),
        (None, False, "NotReported"),
    ],
)
def test_whether_the_device_is_ready_follows_the_wire_that_pods_report(wire, holds, reason):
    operator = running("a", "b")
    for agent in operator.cluster.agents.values():
        agent.wire = wire
    found = conditions(operator)["DeviceReady"]
    assert found[:2] == (holds, reason)
    assert ("never run on a GPU" in found[2]) is (reason == "NeverRunOnGPU")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("fabric", "FabricHangs"), ("setup", "SetupRefused"), ("device", "GPUFailed")],
)
def test_a_device_that_a_change_did_not_get_is_told_while_the_old_plan_trains(kind, reason):
    operator = running("a")
    said = "the first operation of rank 0 on a with rank 1 on b has not ended in 60 s"
    epochs = operator.cluster.snapshot().epochs
    failure = Failure(kind=kind, sentence=said, epoch=2, step=0, gpus=(("b", 0),))
    failed = dataclasses.replace(epochs[-1], epoch=2, outcome="aborted", failures=(failure,))
    again = dataclasses.replace(failed, epoch=3, outcome="open", failures=(), seal=None)
    for newest in ((failed,), (failed, again)):
        found = conditions(operator, epochs=(*epochs, *newest))
        assert found["DeviceReady"] == (False, reason, said)
        assert found["Running"][0]
    lived = dataclasses.replace(epochs[-1], epoch=3)
    assert conditions(operator, epochs=(*epochs, failed, lived))["DeviceReady"][1] == "NotReported"


def test_a_gpu_that_failed_is_told_until_another_plan_trains():
    operator = running("a", "b")
    agent = operator.cluster.agents["tiny-b-0"]
    agent.change(0, phase="halted", error="CUDA error", error_kind="device")
    assert conditions(operator)["DeviceReady"] == (False, "GPUFailed", "CUDA error")
    operator.run(lambda _: len(operator.cluster.records.all) == 2)
    assert conditions(operator)["DeviceReady"] == (False, "GPUFailed", "CUDA error")
    operator.settle()
    assert conditions(operator)["DeviceReady"][1] == "NotReported"


def test_a_gpu_that_lacked_memory_for_a_change_alone_is_ready():
    operator = running("a", "b")
    failing = {"failed_epoch": 2, "error": "out of memory", "error_kind": "device"}
    operator.cluster.add_node("c")
    operator.run(lambda _: operator.cluster.records.all[-1].seal and
                 operator.cluster.records.all[-1].epoch == 2)  # fmt: skip
    operator.cluster.agents["tiny-a-0"].change(0, **failing)
    operator.run(lambda _: operator.cluster.records.all[-1].outcome == "aborted")
    assert operator.cluster.records.all[-1].failures
    assert conditions(operator)["DeviceReady"][1] == "NotReported"
