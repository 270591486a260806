"""What tells that a node will be gone: taints, conditions, labels, a deletion, a user's own word.

Invariant: a notice is read from the Node alone, so that an operator that starts anew sees it too.
Source: the autoscalers, termination handlers and clouds named beside each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DRAINING = "heddle.dev/draining"  # annotation: the user's own notice
_TAINTS = (
    "aws-node-termination-handler/",  # spot, maintenance, rebalancing, scale-in
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "cloud.google.com/impending-node-termination",
    "node.kubernetes.io/out-of-service",
    "sagemaker.amazonaws.com/node-health-status",
)
_LABELS = {
    "cloud.google.com/active-node-maintenance": ("ONGOING",),
    "nvidia.com/gpu.deploy.driver": ("paused-for-driver-upgrade",),
    "nvidia.com/gpu-driver-upgrade-state": (
        *("cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required"),
    ),
}
# Conditions, each with the status that is bad news.
_CONDITIONS = {
    "AcceleratedHardwareReady": "False",  # EKS node monitoring agent: an accelerator is broken
    "VMEventScheduled": "True",  # AKS, by the node problem detector
    "PreemptScheduled": "True",
    "TerminateScheduled": "True",
    "RedeployScheduled": "True",
    "RebootScheduled": "True",
}


def notice_of(node: Mapping[str, Any], leave_on_cordon: bool) -> str:
    """Why the node will be gone, in words; "" if it stays.

    Args:
        node: a Node object.
        leave_on_cordon: whether a cordon is a notice to this job.
    """
    said = _said_by_metadata(node.get("metadata", {}))
    if said:
        return said
    spec = node.get("spec", {})
    for taint in spec.get("taints") or ():
        if str(taint.get("key", "")).startswith(_TAINTS):
            return f"has the taint {taint['key']}"
    conditions = {c["type"]: c for c in node.get("status", {}).get("conditions") or ()}
    for kind, bad in _CONDITIONS.items():
        if conditions.get(kind, {}).get("status") == bad:
            return f"has the condition {kind}={bad}"
    ready = conditions.get("Ready", {})
    if ready.get("status") != "True":
        return f"is not ready ({ready.get('reason', 'its kubelet has not reported')})"
    if leave_on_cordon and spec.get("unschedulable"):
        return "is cordoned"
    return ""


def _said_by_metadata(metadata: Mapping[str, Any]) -> str:
    if metadata.get("deletionTimestamp"):
        return "is being deleted"
    if (metadata.get("annotations") or {}).get(DRAINING):
        return f"has the annotation {DRAINING}"
    for key, values in _LABELS.items():
        found = (metadata.get("labels") or {}).get(key)
        if found in values:
            return f"has the label {key}={found}"
    return ""
