"""Whatever is evicted of what may be: no step is lost, and no job goes below minGPUs.

Random evictions on the fake cluster, also between any two writes of the operator, of jobs that
yield to an autoscaler; nodes that were given back go, others come.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fakes.evictions import Evictions
from tests.fakes.operator import FakeOperator, a_cluster, a_job

CASES = int(os.environ.get("HEDDLE_YIELDS", "6"))
TICK_S = 0.5


class Trial:
    def __init__(self, seed, **elastic):
        self.random = random.Random(seed)
        self.least = elastic.get("minGPUs") or self.random.randint(1, 3)
        wishes = {"yieldToAutoscaler": True, **elastic, "minGPUs": self.least}
        self.job = a_job(**wishes)
        self.nodes = "abcde"[: self.random.randint(min(self.least + 1, 5), 5)]
        as_pipeline = self.random.random() < 0.3
        self.cluster = a_cluster(self.job, *self.nodes, as_pipeline=as_pipeline)
        self.operator = FakeOperator(self.job, self.cluster)
        self.operator.settle()
        self.evictions = Evictions(self.operator)
        self.evicted = []
        self.trained = 0

    def advance(self, asks=0.0):
        """One pass; before and after each write somebody may ask for an eviction."""
        self.operator.reconcile()
        for _ in self.evictions.writing(self.evictions.drain()):
            self.ask(asks)
        self.cluster.tick(TICK_S)
        self.evictions.pass_time()
        self.ask(asks)
        self.check()

    def ask(self, asks):
        allowed = self.evictions.allowed()
        if allowed and self.random.random() < asks:
            name = self.random.choice(allowed)
            assert not any(pod.deleting for pod in self.cluster.pods.values()), "two go at once"
            self.evicted.append(name)
            self.evictions.evict(name)

    def check(self):
        live = [record for record in self.cluster.records.all if record.outcome == "live"][-1]
        staying = sum(pod.gpus for pod in self.cluster.pods.values() if not pod.deleting)
        assert min(live.plan.gpus, staying) >= self.least
        steps = self.cluster.training_steps()
        self.trained = max(self.trained, *steps, 0)
        assert not steps or min(steps) >= self.trained - 1
        assert "loss" not in {record.reason for record in self.cluster.records.all}

    def take_back(self):
        """Nodes that hold no pod of the job go; another may come."""
        held = {pod.node for pod in self.cluster.pods.values()}
        for node in set(self.cluster.nodes) - held:
            self.cluster.kill_node(node)
        gone = sorted(set("abcdef") - set(self.cluster.nodes))
        if gone and self.random.random() < 0.5:
            self.cluster.add_node(self.random.choice(gone))


@pytest.mark.parametrize("seed", range(CASES))
def test_no_eviction_that_is_allowed_costs_a_step_or_breaks_the_floor(seed):
    trial = Trial(seed)
    for number in range(120):
        trial.advance(asks=0.05)
        if number % 40 == 39:
            trial.take_back()
    for _ in range(40):
        trial.advance()
    assert trial.operator.decision.phase == "Running"
    assert trial.cluster.training_steps()
    assert trial.evicted


def test_each_node_can_be_asked_for_and_the_others_wait_until_the_move_is_over():
    trial = Trial(0, minGPUs=2)
    for _ in range(40):
        trial.advance()
    allowed = trial.evictions.allowed()
    assert len(allowed) == len(trial.nodes) > 2
    trial.evictions.evict(allowed[0])
    assert trial.evictions.allowed() == []
    moves = len(trial.cluster.records.all)
    while len(trial.cluster.records.all) == moves or trial.operator.decision.phase != "Running":
        assert trial.evictions.allowed() == []
        trial.advance()
    assert trial.cluster.records.all[moves].reason == "drain"


def test_a_job_at_its_floor_yields_nothing():
    trial = Trial(0, minGPUs=5)
    for _ in range(40):
        trial.advance()
    assert trial.evictions.allowed() == []


def test_a_job_that_was_not_told_to_yields_nothing():
    trial = Trial(1, yieldToAutoscaler=False)
    for _ in range(40):
        trial.advance()
    assert trial.evictions.allowed() == []
