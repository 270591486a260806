"""Every sign that a node will be gone, and those that are none."""

from __future__ import annotations

import math

import pytest

from heddle_operator.inventory.disruptions import first_to_end, notices_of

READY = {"type": "Ready", "status": "True"}


def a_node(metadata=None, spec=None, conditions=()):
    return {
        "metadata": metadata or {},
        "spec": spec or {},
        "status": {"conditions": [READY, *conditions]},
    }


def tainted(key, effect="NoSchedule"):
    return a_node(spec={"taints": [{"key": key, "effect": effect}]})


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (a_node({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "is being deleted"),
        (a_node({"annotations": {"heddle.dev/draining": "1"}}), "annotation heddle.dev/draining"),
        (tainted("aws-node-termination-handler/spot-itn"), "has the taint aws-node-termination"),
        (tainted("karpenter.sh/disrupted"), "has the taint karpenter.sh/disrupted"),
        (tainted("ToBeDeletedByClusterAutoscaler"), "ToBeDeletedByClusterAutoscaler"),
        (tainted("cloud.google.com/impending-node-termination"), "impending-node-termination"),
        (
            a_node({"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}),
            "has the label cloud.google.com/active-node-maintenance=ONGOING",
        ),
        (
            a_node(conditions=[{"type": "AcceleratedHardwareReady", "status": "False"}]),
            "has the condition AcceleratedHardwareReady=False",
        ),
        (a_node(conditions=[{"type": "RebootScheduled", "status": "True"}]), "RebootScheduled"),
        ({"metadata": {}, "spec": {}, "status": {}}, "is not ready (its kubelet has not reported)"),
        (
            {
                "metadata": {},
                "status": {
                    "conditions": [
                        {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
                    ]
                },
            },
            "is not ready (KubeletNotReady)",
        ),
    ],
)
def test_a_notice_is_read_in_words(node, why):
    assert [why in notice.why for notice in notices_of(node, False)] == [True]


@pytest.mark.parametrize(
    "node",
    [
        a_node(),
        tainted("nvidia.com/gpu"),
        tainted("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
        a_node({"labels": {"cloud.google.com/active-node-maintenance": "PENDING"}}),
        a_node(conditions=[{"type": "RebootScheduled", "status": "False"}]),
        a_node(spec={"unschedulable": True}),
    ],
    ids=["plain", "GPU pool", "candidate", "maintenance to come", "nothing scheduled", "cordoned"],
)
def test_other_signs_are_no_notice(node):
    assert notices_of(node, False) == ()


SPOT = "aws-node-termination-handler/spot-itn"


@pytest.mark.parametrize(
    ("node", "ends_at_s"),
    [
        (tainted(SPOT), 57.0 + 120),
        (tainted("aws-node-termination-handler/scheduled-maintenance"), math.inf),
        (tainted("cloud.google.com/impending-node-termination"), 57.0 + 15),
        (
            a_node(spec={"taints": [{"key": SPOT, "timeAdded": "1970-01-01T00:16:40Z"}]}),
            10.0 + 120,
        ),
        (
            a_node(conditions=[{"type": "PreemptScheduled", "status": "True",
                                "lastTransitionTime": "1970-01-01T00:16:40Z"}]),
            10.0 + 30,
        ),
        (a_node({"annotations": {"heddle.dev/draining": "1970-01-01T00:17:40Z"}}), 70.0),
        (a_node({"annotations": {"heddle.dev/draining": "soon"}}), math.inf),
    ],
)  # fmt: skip
def test_a_notice_ends_when_its_cloud_says(node, ends_at_s):
    """It was seen first at 57 s of the loop's clock, which lags 990 s behind the wall clock."""
    (notice,) = notices_of(node, False)
    assert notice.ends_at_s(57.0, 990.0) == ends_at_s


def tainted_with(*keys, **more):
    return a_node(spec={"taints": [{"key": key, "effect": "NoSchedule"} for key in keys]}, **more)


REBALANCE = "aws-node-termination-handler/rebalance-recommendation"
GKE = "cloud.google.com/impending-node-termination"
DRAINED = {"annotations": {"heddle.dev/draining": "true"}}
PREEMPTED = {
    "type": "PreemptScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:17:20Z"
}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "why", "ends_at_s"),
    [
        (tainted_with(REBALANCE, SPOT), f"has the taint {SPOT}", 57.0 + 120),
        (tainted_with(SPOT, REBALANCE), f"has the taint {SPOT}", 57.0 + 120),
        (tainted_with(GKE, metadata=DRAINED), f"has the taint {GKE}", 57.0 + 15),
        (
            tainted_with("ToBeDeletedByClusterAutoscaler", conditions=[PREEMPTED]),
            "has the condition PreemptScheduled=True",
            50.0 + 30,
        ),
        (
            tainted_with(REBALANCE, metadata=DRAINED),
            "has the annotation heddle.dev/draining",
            math.inf,
        ),
    ],
)
def test_of_several_notices_the_one_that_ends_first_holds(node, why, ends_at_s):
    notice, ends_s = first_to_end(notices_of(node, False), {}, 57.0, 990.0)
    assert (notice.why, ends_s) == (why, ends_at_s)


def test_each_notice_counts_from_when_it_was_seen_first():
    notices = notices_of(tainted_with(SPOT, GKE), False)
    seen_s = {f"has the taint {SPOT}": 0.0}
    assert first_to_end(notices, seen_s, 110.0, 990.0)[1] == 120.0
    assert first_to_end(notices, seen_s, 90.0, 990.0)[1] == 105.0
    assert first_to_end((), seen_s, 90.0, 990.0) is None
