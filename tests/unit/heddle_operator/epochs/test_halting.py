"""Survivors are told at once that a silent peer is lost, and nobody else is."""

from __future__ import annotations

import pytest

from heddle_operator.state.actions import SendHalt
from tests.fakes.operator import running_on


def halts(decision):
    return {a.pod: a.halt.epoch for a in decision.actions if isinstance(a, SendHalt)}


def until_halted(operator, passes=300):
    for _ in range(passes):
        found = halts(operator.reconcile())
        if found:
            return found
        operator.cluster.tick()
    raise AssertionError(f"nobody is halted: {operator.decision.message}")


def switching(*nodes):
    """A job that is held up in the switch to an epoch with the joiner z, which fell silent."""
    operator, cluster = running_on(*nodes)
    cluster.add_node("z")
    cluster.slow_s = {"tiny-z-0": 0.5}
    operator.run(lambda d: d.phase == "Switching")
    return operator, cluster


@pytest.mark.parametrize("timeout_s", [2, 10, 30])
def test_survivors_of_a_silent_peer_are_halted_after_the_peer_timeout_of_the_job(timeout_s):
    operator, cluster = running_on("a", "b", "c", peerTimeoutSeconds=timeout_s)
    cluster.silence("tiny-a-0")
    began_s = cluster.now
    assert until_halted(operator, 500) == {"tiny-b-0": 1, "tiny-c-0": 1}
    assert cluster.now - began_s == pytest.approx(timeout_s, abs=0.2)


def test_survivors_of_a_stopped_rank_are_halted_although_its_agent_answers():
    operator, cluster = running_on("a", "b")
    cluster.stop_rank("tiny-a-0", 0)
    assert until_halted(operator) == {"tiny-b-0": 1}
    assert operator.decision.message.startswith("rank 0 on a fell silent: no heartbeat for 10 s")


def test_a_halt_says_who_fell_silent_and_is_sent_until_all_have_halted():
    operator, cluster = running_on("a", "b")
    cluster.silence("tiny-a-0")
    until_halted(operator)
    (first,) = cluster.halts
    assert first.halt.reason == "rank 0 on a fell silent: no answer of the agent for 10 s"
    assert halts(operator.reconcile()) == {}
    assert cluster.agents["tiny-b-0"].ranks[0].phase == "halted"


def test_ranks_that_wait_in_a_switch_for_a_silent_joiner_are_halted():
    """The joiner is no rank of the epoch that trains: it is the change that must be left."""
    operator, cluster = switching("a", "b")
    cluster.silence("tiny-z-0")
    assert until_halted(operator) == {"tiny-a-0": 2, "tiny-b-0": 2}
    operator.run(lambda d: cluster.records.all[-1].reason == "loss" and d.phase == "Running")
    assert cluster.records.all[-1].plan.nodes == ("a", "b")


def test_a_joiner_that_falls_silent_while_the_old_plan_trains_halts_nobody():
    operator, cluster = running_on("a", "b")
    cluster.add_node("z")
    operator.run(lambda _: "tiny-z-0" in cluster.agents and cluster.records.all[-1].seal)
    cluster.silence("tiny-z-0")
    for _ in range(200):
        assert halts(operator.reconcile()) == {}
        cluster.tick()
    outcomes = [(record.reason, record.outcome) for record in cluster.records.all]
    assert ("join", "aborted") in outcomes
    assert "loss" not in dict(outcomes)


def test_an_epoch_that_hangs_is_halted_told_of_and_recovered_from():
    operator, cluster = running_on("a", "b")
    cluster._is_busy = lambda *_: True  # they beat, and never end the step
    assert until_halted(operator, 700) == {"tiny-a-0": 1, "tiny-b-0": 1}
    (event,) = [e for e in cluster.events.values() if e.reason == "ProgressDeadlineExceeded"]
    assert event.message.startswith("no rank of epoch 1 has made progress for 60 s: the rank on")
    del cluster._is_busy
    operator.settle()
    assert [record.outcome for record in cluster.records.all] == ["live", "live"]


def test_the_store_of_a_recovery_is_never_on_the_silent_pod():
    operator, cluster = running_on("a", "b", "c")
    cluster.silence("tiny-a-0")
    operator.run(lambda d: len(cluster.records.all) == 2 and d.phase == "Running", 200)
    assert cluster.records.all[-1].seal.store == "tiny-b-0:1"


def test_a_stopped_process_is_left_to_its_agent_first_and_then_goes_with_its_pod():
    operator, cluster = running_on("a", "b", "c")
    cluster.stop_rank("tiny-a-0", 0)
    waits = operator.run(lambda d: "until its agent has killed it" in d.message, 200)
    assert waits.phase == "Recovering"
    assert "tiny-a-0" in cluster.pods
    operator.run(lambda _: "tiny-a-0" not in cluster.pods)
    assert operator.settle(200).phase == "Running"


def test_a_rank_that_its_agent_killed_is_replaced_in_its_pod():
    operator, cluster = running_on("a", "b", "c")
    agent = cluster.agents["tiny-a-0"]
    cluster.stop_rank("tiny-a-0", 0)
    operator.run(lambda d: "until its agent has killed it" in d.message, 200)
    cluster.kill_rank("tiny-a-0", 0)
    operator.settle()
    assert cluster.agents["tiny-a-0"] is agent
    assert agent.ranks[0].phase == "training"
