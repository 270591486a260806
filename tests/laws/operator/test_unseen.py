"""GPUs that other namespaces hold are not seen by a namespaced operator: refused bindings teach it.

Random nodes of which others hold a random part: the job trains with what it gets, soon and without
an end of attempts, and takes what becomes free.
"""

from __future__ import annotations

import os
import random

import pytest

from heddle_operator.rules.failures import NODE_PAUSE_S
from tests.fakes.operator import a_job
from tests.fakes.shared import SharedNodes

CASES = int(os.environ.get("HEDDLE_UNSEEN", "6"))
TICK_S = 0.5


def trained_gpus(cluster):
    """By node, of the newest live plan."""
    live = [record for record in cluster.records.all if record.outcome == "live"]
    found: dict[str, int] = {}
    for placed in live[-1].plan.placement if live else ():
        found[placed.node] = found.get(placed.node, 0) + len(placed.gpus)
    return found


def a_cluster(gpus, unseen, seed=0, **elastic):
    job = a_job(**elastic)
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"steps": 10**6})})
    return SharedNodes([job], gpus, seed, unseen=unseen)


def advance(around, seconds):
    until_s = around.now + seconds
    while around.now < until_s:
        around.advance(TICK_S)


def test_a_full_node_is_left_out_after_one_try():
    around = a_cluster({"a": 1, "b": 1}, {"b": 1})
    advance(around, 30)
    (cluster,) = around.clusters
    assert trained_gpus(cluster) == {"a": 1}
    assert [record.outcome for record in cluster.records.all] == ["aborted", "live"]


def test_of_a_node_that_others_use_half_as_many_gpus_are_tried_each_time():
    around = a_cluster({"a": 8}, {"a": 6})
    advance(around, 60)
    (cluster,) = around.clusters
    assert trained_gpus(cluster) == {"a": 2}
    refused = [f.gpus for record in cluster.records.all for f in record.start_failures]
    assert refused == [8, 4]


def test_what_becomes_free_is_found_after_the_pause():
    around = a_cluster({"a": 8}, {"a": 6})
    advance(around, 60)
    around.unseen.clear()
    advance(around, 4 * NODE_PAUSE_S)
    assert trained_gpus(around.clusters[0]) == {"a": 8}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CASES))
def test_a_job_trains_with_what_it_can_get_and_tries_ever_more_rarely(seed):
    pick = random.Random(seed)
    gpus = {name: pick.choice((1, 2, 4, 8)) for name in "abcd"[: pick.randint(1, 4)]}
    unseen = {name: pick.randint(0, count) for name, count in gpus.items()}
    around = a_cluster(gpus, unseen, seed)
    free = {name: count - unseen[name] for name, count in gpus.items()}
    if not any(free.values()):
        free["a"], around.unseen["a"] = 1, gpus["a"] - 1
    advance(around, 90)
    (cluster,) = around.clusters
    trained = trained_gpus(cluster)
    for name, count in free.items():
        assert count // 2 <= trained.get(name, 0) <= count
    attempts = len(cluster.records.all)
    advance(around, 1800)
    assert sum(trained_gpus(cluster).values()) >= sum(trained.values())
    assert len(cluster.records.all) - attempts <= 14
    assert "loss" not in {record.reason for record in cluster.records.all}
