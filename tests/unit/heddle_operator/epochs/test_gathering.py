"""Pods are awaited before an epoch is sealed; what keeps them is said, the old plan trains on."""

from __future__ import annotations

import dataclasses

import pytest

from heddle_operator.state.actions import CloseEpoch, CreatePod, DeletePod
from heddle_operator.state.snapshot import Headroom, RefusedPod
from tests.fakes.operator import running, running_on, waiting
from tests.unit.heddle_operator.epochs.gathered import LIMITS, gathering, look


def with_problem(operator, name, problem):
    """The pods as observed, one of which cannot start."""
    for _ in range(5):
        if name in operator.cluster.pods:
            break
        operator.reconcile()
    pod = dataclasses.replace(operator.cluster.pods[name], phase="pending", problem=problem)
    operator.cluster.pods[name] = pod
    return operator.cluster.snapshot().pods


PROBLEMS = ["ImagePullBackOff: no such image", "Unschedulable: 0/2 nodes are available"]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_joiner_that_cannot_start_is_told_of_while_the_old_plan_trains(problem):
    operator = gathering("a")
    pods = with_problem(operator, "tiny-b-0", problem)
    decision = look(operator, pods=pods)
    assert decision.message == f"pod tiny-b-0: {problem}"
    assert not [a for a in decision.actions if isinstance(a, CloseEpoch | DeletePod)]
    assert {rank.phase for _, rank in operator.cluster.holders()} == {"training"}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_epoch_whose_pods_cannot_start_is_given_up_after_a_while(problem):
    operator = gathering("a")
    pods = with_problem(operator, "tiny-b-0", problem)
    decision = look(operator, LIMITS.pod_problem_s + 1, pods=pods)
    (close,) = [a for a in decision.actions if isinstance(a, CloseEpoch)]
    assert (close.outcome, close.message) == ("aborted", f"pod tiny-b-0: {problem}")


def test_a_pod_that_cannot_start_goes_with_its_epoch():
    operator = gathering("a")
    with_problem(operator, "tiny-b-0", PROBLEMS[0])
    operator.cluster.do(CloseEpoch(epoch=2, outcome="aborted", message="because"))
    decision = look(operator)
    assert "tiny-b-0" in [a.name for a in decision.actions if isinstance(a, DeletePod)]


def test_a_pod_that_a_quota_forbids_is_tried_again_after_a_pause():
    operator = gathering("a")
    refusal = RefusedPod("tiny-b-0", "b", "exceeded quota: gpus", *2 * (operator.cluster.now,))
    decision = look(operator, refusals=(refusal,))
    assert decision.message == "pod tiny-b-0 is refused: exceeded quota: gpus"
    assert not decision.actions
    assert decision.look_again_s == pytest.approx(LIMITS.refusal_pause_s)
    again = look(operator, LIMITS.refusal_pause_s, refusals=(refusal,))
    assert [a.name for a in again.actions if isinstance(a, CreatePod)] == ["tiny-b-0"]


def test_gpus_that_another_job_took_end_the_epoch():
    operator = gathering()
    nodes = tuple(dataclasses.replace(node, gpus=0) for node in operator.cluster.snapshot().nodes)
    decision = look(operator, nodes=nodes)
    (close,) = [a for a in decision.actions if isinstance(a, CloseEpoch)]
    assert close.message == "node b has 0 free GPUs now, the plan needs 1"


def test_a_change_waits_for_old_ranks_that_cannot_be_asked():
    operator = gathering("a", joiner="c")
    operator.cluster.drain("a")
    for _ in range(5):
        operator.reconcile()
        operator.cluster.tick()
        if operator.cluster.records.all[-1].seal:
            break
        operator.cluster.unreachable["tiny-a-0"] = operator.cluster.now - 5
    assert operator.cluster.records.all[-1].seal is None
    assert operator.decision.message == "epoch 3 waits for an answer of pod tiny-a-0"


def test_an_agent_of_another_version_is_named():
    operator = gathering("a")
    operator.reconcile()
    operator.cluster.tick()
    agents = dict(operator.cluster.snapshot().agents)
    view = agents.get("tiny-b-0")
    assert view is not None
    problem = "its agent speaks another version of the contract"
    agents["tiny-b-0"] = dataclasses.replace(view, report=None, problem=problem)
    assert look(operator, agents=agents).message == f"pod tiny-b-0: {problem}"


def test_an_evicted_pod_hands_its_state_over_before_it_goes():
    operator = running("a", "b")
    pods = operator.cluster.pods
    pods["tiny-b-0"] = dataclasses.replace(pods["tiny-b-0"], deleting=True)
    operator.run(lambda _: len(operator.cluster.records.all) > 1)
    operator.run(lambda _: operator.cluster.records.all[-1].outcome != "open")
    newest = operator.cluster.records.all[-1]
    assert (newest.reason, newest.outcome, newest.plan.nodes) == ("drain", "live", ("a",))


def test_a_node_whose_pod_can_fork_no_more_rank_is_drained_all_the_same():
    """Its ranks are there; only a pod that must start one waits for its fork server."""
    operator = running("a", "b")
    operator.cluster.agents["tiny-b-0"].is_deaf = True
    operator.cluster.drain("b")
    operator.run(lambda _: len(operator.cluster.records.all) > 1)
    operator.run(lambda _: operator.cluster.records.all[-1].outcome != "open")
    newest = operator.cluster.records.all[-1]
    assert (newest.reason, newest.outcome, newest.plan.nodes) == ("drain", "live", ("a",))


def test_a_recovery_whose_pod_falls_silent_before_it_is_sealed_goes_on_without_it():
    operator, cluster = running_on("a", "b", "c")
    cluster.kill_node("a")
    operator.run(lambda _: len(cluster.records.all) == 2)
    cluster.silence("tiny-b-0")
    operator.run(lambda d: d.phase == "Running", 200)
    assert cluster.records.all[1].message == "pod tiny-b-0 failed"
    assert cluster.records.all[-1].plan.nodes == ("c",)


def test_a_recovery_does_not_wait_for_a_pod_that_must_start_again_while_others_suffice():
    operator, cluster = running_on("a", "b", "c")
    cluster.kill_node("a")
    operator.run(lambda _: cluster.records.all[-1].epoch == 2)
    cluster.kill_pod("tiny-c-0")
    decision = operator.run(lambda _: cluster.records.all[-1].outcome == "aborted")
    assert decision.message == "node c must start its pod again, and the others suffice"
    operator.run(lambda _: cluster.records.all[-1].outcome == "live")
    assert cluster.records.all[-1].plan.nodes == ("b",)


def test_it_waits_where_they_do_not_suffice():
    operator, cluster = running_on("a", "b", "c", minGPUs=2)
    cluster.kill_node("a")
    operator.run(lambda _: cluster.records.all[-1].epoch == 2)
    cluster.kill_pod("tiny-c-0")
    operator.run(lambda _: cluster.records.all[-1].outcome == "live")
    assert [record.outcome for record in cluster.records.all] == ["live", "live"]


def test_an_epoch_beyond_a_quota_gives_way_at_once_to_one_within_it():
    operator = waiting("a")
    cluster = operator.cluster
    cluster.add_node("b", gpus=4)
    operator.run(lambda _: bool(cluster.records.all))
    refusal = RefusedPod("tiny-b-0", "b", "exceeded quota: team", *2 * (cluster.now,))
    cluster.pods.pop("tiny-b-0", None)
    room = Headroom(gpus=1, why="quota team")
    decision = look(operator, pods=(), refusals=(refusal,), headroom=room)
    (close,) = [a for a in decision.actions if isinstance(a, CloseEpoch)]
    assert close.message == "node b needs 4 more GPUs, and quota team leaves 1 GPU"
    assert close.start_failures == ()
