"""A node that is not ready again and again is taken in ever less often, and at last not at all.

The whole loop on the fake cluster; what it sees of the node is read from its Node object.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from heddle_operator.inventory.node_flaps import PAUSE_LIMIT_S, WINDOW_S, NodeFlaps
from heddle_operator.inventory.node_history import NodeHistory
from heddle_operator.inventory.nodes import NodeRequirements, facts_of, ready_since_text
from heddle_operator.inventory.requests import GPU
from tests.fakes.operator import FakeOperator, a_cluster, a_job

REQUIRED = NodeRequirements({}, leave_on_cordon=False, gpu_types=("demo-fast",))
PASS_S = 1.0


class Trial:
    """A job on node a, and node b that comes and goes."""

    def __init__(self):
        job = a_job()
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"steps": 10**6})})
        self.cluster = a_cluster(job, "a")
        self.operator = FakeOperator(job, self.cluster)
        self.operator.settle()
        self.flaps, self.history = NodeFlaps(), NodeHistory(0.0)
        self.history.keep_only(["a"])
        self.is_ready, self.since_s = True, self.cluster.now

    def turn(self, is_ready):
        self.is_ready, self.since_s = is_ready, self.cluster.now

    def advance(self, seconds):
        for _ in range(round(seconds / PASS_S)):
            self.see()
            self.operator.reconcile()
            self.cluster.tick(PASS_S)

    def see(self):
        """Node b, as an operator reads it."""
        now, minutes, seconds = self.cluster.now, *divmod(int(self.since_s), 60)
        node = {
            "metadata": {"name": "b", "labels": {"heddle.dev/gpu-type": "demo-fast"}},
            "status": {
                "capacity": {GPU: "1"},
                "allocatable": {GPU: "1"},
                "conditions": [
                    {
                        "type": "Ready",
                        "status": str(self.is_ready),
                        "lastTransitionTime": f"1970-01-01T{minutes // 60:02}:{minutes % 60:02}"
                        f":{seconds:02}Z",
                    }
                ],
            },
        }
        self.flaps.seen("b", ready_since_text(node), now)
        flap = self.flaps.flap("b", now)
        own = sum(
            p.gpus for p in self.cluster.pods.values() if p.node == "b" and p.phase != "ended"
        )
        waits_s = flap.until_s if flap else None
        facts = facts_of(node, REQUIRED)
        seen = self.history.view(facts, (own, 0), now, waits_until_s=waits_s).seen
        self.cluster.nodes["b"] = replace(seen)

    @property
    def adoptions(self):
        """Plans that were to use node b."""
        return sum("b" in record.plan.nodes for record in self.cluster.records.all)

    @property
    def uses_b(self):
        live = [record for record in self.cluster.records.all if record.outcome == "live"]
        return "b" in live[-1].plan.nodes


@pytest.mark.parametrize("seed", range(2))
def test_a_flapping_node_is_adopted_a_few_times_and_not_at_each_return(seed):
    chance, trial = random.Random(seed), Trial()
    trial.advance(60)
    assert trial.uses_b
    before = trial.adoptions
    for _ in range(40):
        trial.turn(is_ready=False)
        trial.advance(chance.randrange(6, 10))
        trial.turn(is_ready=True)
        trial.advance(chance.randrange(6, 10))
    assert trial.adoptions - before <= 2
    trial.advance(PAUSE_LIMIT_S + 30)
    assert trial.uses_b
    trial.advance(WINDOW_S)
    trial.turn(is_ready=False)
    trial.advance(20)
    trial.turn(is_ready=True)
    trial.advance(20)
    assert trial.uses_b
