"""Every sign that a node will be gone, and those that are none."""

from __future__ import annotations

import math

import pytest

from heddle_operator.inventory.disruptions import notice_of

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
    assert why in notice_of(node, False).why


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
    assert notice_of(node, False) is None


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
    assert notice_of(node, False).ends_at_s(57.0, 990.0) == ends_at_s
