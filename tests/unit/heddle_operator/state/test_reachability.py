"""Who answers, who is silent, and who is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.state.reachability import (
    doubt_left_s,
    is_doubtful,
    is_pod_lost,
    is_silent,
    sends_heartbeats,
)
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import AgentView, Observed, ObservedPod
from tests.fakes.operator import FakeOperator, a_cluster, a_job
from worker.contract import RankReport

LIMITS = Settings(peer_timeout_s=10.0)
NOW = 1000.0


def seen(since_s, phase="running", report=None, problem="", created_s=0.0, epochs=()):
    pod = ObservedPod(name="p", node="n", ordinal=0, gpus=1, phase=phase, created_s=created_s)
    view = AgentView(pod="p", report=report, unreachable_since_s=since_s, problem=problem)
    return Observed(pods=(pod,), agents={"p": view}, epochs=epochs)


@pytest.mark.parametrize(("silent_s", "lost"), [(0.0, False), (9.9, False), (10.0, True)])
def test_an_agent_is_lost_once_it_was_silent_for_the_peer_timeout(silent_s, lost):
    observed = seen(NOW - silent_s)
    assert is_silent(observed, "p", NOW, LIMITS) == lost
    assert is_pod_lost(observed, "p", NOW, LIMITS) == lost


def test_an_agent_that_answers_is_neither_silent_nor_in_doubt():
    assert not is_silent(seen(None), "p", NOW, LIMITS)
    assert not is_doubtful(seen(None), "p", NOW, LIMITS)
    assert doubt_left_s(seen(None), NOW, LIMITS) is None


def test_one_whose_answers_are_not_understood_is_not_silent():
    observed = seen(NOW - 60, problem="its agent is of another version")
    assert not is_silent(observed, "p", NOW, LIMITS)
    assert is_pod_lost(observed, "p", NOW, LIMITS)


def test_an_agent_that_never_answered_may_still_start():
    assert not is_silent(seen(NOW - 60, created_s=NOW - 70), "p", NOW, LIMITS)
    assert is_silent(seen(NOW - 60, created_s=NOW - LIMITS.pod_timeout_s), "p", NOW, LIMITS)


def test_one_whose_epoch_was_sealed_answered_before_even_if_this_operator_never_heard_it():
    job = a_job()
    cluster = a_cluster(job, "a")
    FakeOperator(job, cluster).settle()
    cluster.silence("tiny-a-0")
    since_s = cluster.now
    observed = cluster.snapshot()
    never = replace(observed.agents["tiny-a-0"], report=None)
    observed = replace(observed, agents={"tiny-a-0": never})
    assert is_doubtful(observed, "tiny-a-0", since_s + 9, LIMITS)
    assert doubt_left_s(observed, since_s + 9, LIMITS) == pytest.approx(1.0)
    assert is_silent(observed, "tiny-a-0", since_s + 10, LIMITS)


@pytest.mark.parametrize(("age_s", "beats"), [(0.0, True), (10.0, True), (10.1, False)])
def test_a_rank_is_lost_once_its_heartbeats_stay_out_for_the_peer_timeout(age_s, beats):
    rank = RankReport(slot=0, pid=1, started_s=0.0, phase="training", beat_age_s=age_s)
    assert sends_heartbeats(rank, LIMITS) == beats
