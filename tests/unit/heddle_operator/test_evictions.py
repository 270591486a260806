"""A drain may evict where the job can do without, and nowhere else."""

from __future__ import annotations

import pytest

from heddle_operator.evictions import evictable_pods
from heddle_operator.snapshot import Observed, ObservedNode, ObservedPod
from tests.fakes.operator import a_job

OBSERVED = Observed(
    nodes=(ObservedNode("a", "demo-fast", 2), ObservedNode("b", "demo-fast", 2)),
    pods=(
        ObservedPod("tiny-a-0", "a", 0, 2, "running"),
        ObservedPod("tiny-b-0", "b", 0, 2, "running"),
    ),
)
NODES = {"a": {"spec": {}}, "b": {"spec": {"unschedulable": True}}}


@pytest.mark.parametrize(
    ("elastic", "pods"),
    [({}, {"tiny-b-0"}), ({"minGPUs": 3}, set()), ({"leaveOnCordon": True}, set())],
    ids=["the other node is enough", "too few GPUs are left", "the cordon was notice enough"],
)
def test_pods_of_a_cordoned_node_may_be_evicted_if_the_job_can_do_without(elastic, pods):
    assert evictable_pods(a_job(**elastic), OBSERVED, NODES) == pods


def test_without_a_cordon_no_pod_may_be_evicted():
    assert evictable_pods(a_job(), OBSERVED, {"a": {}, "b": {}}) == frozenset()
