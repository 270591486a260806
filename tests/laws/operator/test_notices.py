"""Whatever time a notice leaves, its node is left before it ends, and no step is lost.

On a virtual clock: nodes, notices of 15 to 120 s, evicted pods with 60 s of grace, a planner
that takes up to two minutes, joiners that pull their image, slow parts of a change.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from tests.fakes.evictions import GRACE_S, Evictions
from tests.fakes.operator import FakeOperator, a_cluster, a_job

CASES = int(os.environ.get("HEDDLE_NOTICES", "8"))
NOTICES_S = (15.0, 30.0, 30.0, 120.0)
TICK_S = 0.5


class Trial:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.job = a_job(minGainPercent=0, minHolders=1 + seed % 2)
        nodes = "abcdef"[: self.random.randint(2, 6)]
        self.cluster = a_cluster(self.job, *nodes)
        self.operator = FakeOperator(self.job, self.cluster)
        self.operator.settle()
        self.search_s, self.asked_s = 0.0, {}

    def advance(self):
        cluster = self.cluster
        self.operator.reconcile()
        cluster.tick(TICK_S, answers_plans=False)
        for key in cluster.asked:
            self.asked_s.setdefault(key, cluster.now)
        if any(cluster.now - self.asked_s[key] >= self.search_s for key in cluster.asked):
            cluster.answer_plans()

    def run(self):
        cluster, pick = self.cluster, self.random
        self.search_s = pick.choice((0.5, 5.0, 40.0, 120.0))
        cluster.slow_s = {"tiny-a-0": pick.uniform(0.0, 3.0)}
        if pick.random() < 0.5:
            cluster.pulls_until_s["x"] = cluster.now + pick.uniform(0, 100)
            cluster.add_node("x")
        for _ in range(pick.randint(0, 40)):
            self.advance()
        trained = max(rank.step for _, rank in cluster.holders())
        node = pick.choice(cluster.records.all[0].plan.nodes)
        notice_s, evictions = pick.choice(NOTICES_S), Evictions(self.operator)
        if pick.random() < 0.3:
            notice_s = GRACE_S
            cluster.nodes[node] = replace(cluster.nodes[node], is_cordoned=True)
            evictions.evict(f"tiny-{node}-0")
        else:
            cluster.drain(node, notice_s)
        ends_s = cluster.now + notice_s
        while any(pod.node == node for pod in cluster.pods.values()):
            assert cluster.now < ends_s, f"{node} is not left: {self.operator.decision.message}"
            self.advance()
            evictions.pass_time()
        cluster.kill_node(node)
        assert min(rank.step for _, rank in cluster.holders()) >= trained
        cluster.slow_s, self.search_s = {}, 0.5
        for _ in range(100):
            self.advance()
        assert "loss" not in {record.reason for record in cluster.records.all}
        live = [record for record in cluster.records.all if record.outcome == "live"][-1]
        staying = set(cluster.records.all[0].plan.nodes) - {node}
        assert staying <= set(live.plan.nodes) <= set(cluster.nodes)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_node_is_left_before_its_notice_ends(seed):
    Trial(seed).run()
