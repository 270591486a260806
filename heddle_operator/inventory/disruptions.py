"""What tells that a node will be gone, and when: taints, conditions, labels, a user's own word.

Invariant: a notice is read from the Node alone, so that an operator that starts anew sees it too.
What says no time leaves as much as a drain leaves: as long as the state takes to move.
Source: the autoscalers, termination handlers and clouds named beside each key, and the seconds that
their documentation promises at least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

DRAINING = "heddle.dev/draining"  # annotation: the user's own notice; a time says when it goes
# Taints by the beginning of their key, with the seconds from notice to end.
_TAINTS = {
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/": math.inf,  # maintenance, rebalancing, scale-in
    "karpenter.sh/disrupted": math.inf,
    "karpenter.sh/disruption": math.inf,
    "ToBeDeletedByClusterAutoscaler": math.inf,
    "cloud.google.com/impending-node-termination": 15.0,  # spot: 30 s, of which pods get 15
    "node.kubernetes.io/out-of-service": 0.0,
    "sagemaker.amazonaws.com/node-health-status": math.inf,
}
_LABELS = {
    "cloud.google.com/active-node-maintenance": ("ONGOING",),
    "nvidia.com/gpu.deploy.driver": ("paused-for-driver-upgrade",),
    "nvidia.com/gpu-driver-upgrade-state": (
        *("cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required"),
    ),
}
# Conditions, each with the status that is bad news, and the seconds from notice to end.
_CONDITIONS = {
    "AcceleratedHardwareReady": ("False", math.inf),  # EKS node monitoring agent
    "PreemptScheduled": ("True", 30.0),  # AKS, by the node problem detector; Azure's least notice
    "TerminateScheduled": ("True", 300.0),
    "RedeployScheduled": ("True", 600.0),
    "RebootScheduled": ("True", 900.0),
    "VMEventScheduled": ("True", math.inf),
}


@dataclass(frozen=True, slots=True)
class Notice:
    """That a node will be gone.

    Attributes:
        why: in words.
        lead_s: seconds from the notice to the end; infinite where nobody says.
        since_wall_s: when it was given; None where nobody says.
        at_wall_s: when it ends, where that is said itself.
    """

    why: str
    lead_s: float = math.inf
    since_wall_s: float | None = None
    at_wall_s: float | None = None

    def ends_at_s(self, seen_s: float, clock_offset_s: float) -> float:
        """When the node goes, by the loop's clock.

        Args:
            seen_s: when the notice was seen first, by that clock.
            clock_offset_s: wall clock less the loop's clock.
        """
        if self.at_wall_s is not None:
            return self.at_wall_s - clock_offset_s
        since_s = seen_s if self.since_wall_s is None else self.since_wall_s - clock_offset_s
        return since_s + self.lead_s


def notice_of(node: Mapping[str, Any], leave_on_cordon: bool) -> Notice | None:
    """Why the node will be gone, and when; None if it stays.

    Args:
        node: a Node object.
        leave_on_cordon: whether a cordon is a notice to this job.
    """
    said = _said_by_metadata(node.get("metadata", {}))
    if said:
        return said
    spec = node.get("spec", {})
    for taint in spec.get("taints") or ():
        key = str(taint.get("key", ""))
        lead_s = next((s for start, s in _TAINTS.items() if key.startswith(start)), None)
        if lead_s is not None:
            return Notice(f"has the taint {key}", lead_s, _wall_s(taint.get("timeAdded")))
    conditions = {c["type"]: c for c in node.get("status", {}).get("conditions") or ()}
    for kind, (bad, lead_s) in _CONDITIONS.items():
        held = conditions.get(kind, {})
        if held.get("status") == bad:
            since_s = _wall_s(held.get("lastTransitionTime"))
            return Notice(f"has the condition {kind}={bad}", lead_s, since_s)
    ready = conditions.get("Ready", {})
    if ready.get("status") != "True":
        return Notice(f"is not ready ({ready.get('reason', 'its kubelet has not reported')})")
    if leave_on_cordon and spec.get("unschedulable"):
        return Notice("is cordoned")
    return None


def _said_by_metadata(metadata: Mapping[str, Any]) -> Notice | None:
    if metadata.get("deletionTimestamp"):
        return Notice("is being deleted")
    said = (metadata.get("annotations") or {}).get(DRAINING)
    if said:
        return Notice(f"has the annotation {DRAINING}", at_wall_s=_wall_s(said))
    for key, values in _LABELS.items():
        found = (metadata.get("labels") or {}).get(key)
        if found in values:
            return Notice(f"has the label {key}={found}")
    return None


def _wall_s(text: object) -> float | None:
    """Seconds of the wall clock of a time; None where it is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
