"""Signs that a node will be gone, and when: taints, conditions, labels, a user's own word.

A node may have several such signs, which come one after the other; the one that ends first holds.
Invariant: a notice is read from the Node alone, so that an operator that starts anew sees it too.
What says no time leaves as much as a drain leaves: as long as the state takes to move.
Source: the autoscalers, termination handlers and clouds named beside each key, and the seconds that
their documentation promises at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from heddle_operator.apis.times import wall_s_if_time

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


def notices_of(node: Mapping[str, Any], leave_on_cordon: bool) -> tuple[Notice, ...]:
    """Every sign that the node will be gone; none if it stays.

    Args:
        node: a Node object.
        leave_on_cordon: whether a cordon is a notice to this job.
    """
    spec, status = node.get("spec", {}), node.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    found = [
        *_said_by_metadata(node.get("metadata", {})),
        *_said_by_taints(spec.get("taints") or ()),
        *_said_by_conditions(conditions),
    ]
    ready = conditions.get("Ready", {})
    if ready.get("status") != "True":
        why = ready.get("reason", "its kubelet has not reported")
        found.append(Notice(f"is not ready ({why})"))
    if leave_on_cordon and spec.get("unschedulable"):
        found.append(Notice("is cordoned"))
    return tuple(found)


def first_to_end(
    notices: Iterable[Notice], seen_s: Mapping[str, float], now: float, clock_offset_s: float
) -> tuple[Notice, float] | None:
    """The notice that holds, and when the node goes by it; None without any.

    Args:
        notices: of one node; of those that end together the first one holds.
        seen_s: when each was seen first, by its words; one that is not here is seen now.
        now: by the loop's clock, like those times.
        clock_offset_s: wall clock less the loop's clock.
    """
    ends = [(n, n.ends_at_s(seen_s.get(n.why, now), clock_offset_s)) for n in notices]
    return min(ends, key=lambda row: row[1], default=None)


def _said_by_metadata(metadata: Mapping[str, Any]) -> Iterator[Notice]:
    if metadata.get("deletionTimestamp"):
        yield Notice("is being deleted")
    said = (metadata.get("annotations") or {}).get(DRAINING)
    if said:
        yield Notice(f"has the annotation {DRAINING}", at_wall_s=wall_s_if_time(said))
    for key, values in _LABELS.items():
        found = (metadata.get("labels") or {}).get(key)
        if found in values:
            yield Notice(f"has the label {key}={found}")


def _said_by_taints(taints: Iterable[Mapping[str, Any]]) -> Iterator[Notice]:
    for taint in taints:
        key = str(taint.get("key", ""))
        lead_s = next((s for start, s in _TAINTS.items() if key.startswith(start)), None)
        if lead_s is not None:
            yield Notice(f"has the taint {key}", lead_s, wall_s_if_time(taint.get("timeAdded")))


def _said_by_conditions(conditions: Mapping[str, Mapping[str, Any]]) -> Iterator[Notice]:
    for kind, (bad, lead_s) in _CONDITIONS.items():
        held = conditions.get(kind, {})
        if held.get("status") == bad:
            since_s = wall_s_if_time(held.get("lastTransitionTime"))
            yield Notice(f"has the condition {kind}={bad}", lead_s, since_s)
