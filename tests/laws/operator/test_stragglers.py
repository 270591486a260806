"""A node that computes slowly is found out, left when that is faster, and tried again; noise moves
nothing.

The whole loop on the fake cluster: each rank measures its steps, the planner prices the speeds.
"""

from __future__ import annotations

import random

import pytest

from heddle_operator.controller.node_speeds import NodeSpeeds
from heddle_operator.state.speeds.node_speed import BELIEVED_S, FORGOTTEN_S
from tests.fakes.operator import FakeOperator, a_cluster, a_job

PASS_S = 5.0  # the loop looks at least so often
FOUND_WITHIN_S = BELIEVED_S + 16 * PASS_S + 10 * PASS_S  # 16 steps are measured, and it moves


class Trial:
    """Nodes a to d, which a job trains on."""

    def __init__(self, seed=0, **elastic):
        self.random = random.Random(seed)
        self.job = a_job(**elastic)
        self.job = self.job.model_copy(
            update={"spec": self.job.spec.model_copy(update={"steps": 10**6})}
        )
        self.cluster = a_cluster(self.job, *"abcd")
        self.start_operator()
        self.operator.settle()
        self.slow = dict.fromkeys("abcd", 1.0)
        for name in self.slow:
            self.cluster.speeds[name] = lambda name=name: self.speed(name)

    def start_operator(self):
        speeds = NodeSpeeds(self.job.workload.model)
        self.operator = FakeOperator(self.job, self.cluster, speeds=speeds)

    def speed(self, name):
        """Of one step: what the node has, with noise of 5 %."""
        return self.slow[name] * self.random.uniform(0.95, 1.05)

    def advance(self, seconds):
        for _ in range(round(seconds / PASS_S)):
            self.operator.reconcile()
            self.cluster.tick(PASS_S)

    @property
    def nodes(self):
        """Of the live plan."""
        live = [record for record in self.cluster.records.all if record.outcome == "live"]
        return set(live[-1].plan.nodes)

    @property
    def changes(self):
        return len(self.cluster.records.all)

    @property
    def planned_speeds(self):
        return {n.name: n.speed_factor for n in self.cluster.records.all[-1].composition.nodes}


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_5_percent_asks_for_no_plan(seed):
    trial = Trial(seed)
    replies = len(trial.cluster.replies)
    trial.advance(3600)
    assert (trial.changes, len(trial.cluster.replies)) == (1, replies)


@pytest.mark.parametrize("name", "ad")
def test_a_node_that_is_twice_as_slow_is_left_without_a_lost_step(name):
    trial = Trial()
    trial.slow[name] = 0.5
    trial.advance(FOUND_WITHIN_S)
    assert trial.nodes == set("abcd") - {name}
    assert trial.planned_speeds[name] == pytest.approx(0.5, abs=0.05)
    assert {record.reason for record in trial.cluster.records.all} == {"start", "join"}
    assert not any(pod.node == name for pod in trial.cluster.pods.values())


def test_a_node_that_is_worth_its_slowness_stays():
    trial = Trial()
    trial.slow["b"] = 0.85  # four at 0.85 are faster than three
    trial.advance(3600)
    assert trial.nodes == set("abcd")
    assert trial.changes == 1


def test_a_slow_node_that_is_well_again_is_used_again():
    trial = Trial()
    trial.slow["b"] = 0.5
    trial.advance(FOUND_WITHIN_S)
    trial.slow["b"] = 1.0
    trial.advance(FORGOTTEN_S + 10 * PASS_S)
    assert trial.nodes == set("abcd")
    changes = trial.changes
    trial.advance(3600)
    assert trial.changes == changes


@pytest.mark.slow
def test_a_node_that_stays_slow_is_tried_ever_more_rarely():
    trial = Trial()
    trial.slow["b"] = 0.5
    trial.advance(2 * 3600)
    # Tried after 10, 20 and 40 minutes: each time there and back, after the first move away.
    assert trial.changes == 2 + 2 * 3
    assert "b" not in trial.nodes


def test_an_operator_that_starts_anew_does_not_try_a_slow_node_at_once():
    trial = Trial()
    trial.slow["b"] = 0.5
    trial.advance(FOUND_WITHIN_S)
    changes = trial.changes
    trial.start_operator()
    trial.advance(FORGOTTEN_S - 10 * PASS_S)
    assert (trial.changes, trial.nodes) == (changes, set("acd"))
