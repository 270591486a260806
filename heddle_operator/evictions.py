"""Which pods a drain may evict: those on cordoned nodes that the job can do without.

A budget that protects every pod hides a drain: the API server refuses the eviction and nobody is
told.  So where a cordon alone is no notice (`leaveOnCordon: false`), pods on a cordoned node leave
the budget; a cordon changes nothing, but an eviction goes through, and is the notice.  The pod then
trains on through its grace while the state moves.
Invariant: a job that cannot do without the node keeps all its pods protected.
Source: Kubernetes' eviction API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heddle_operator.api import HeddleJob
from heddle_operator.snapshot import Observed


def evictable_pods(
    job: HeddleJob, observed: Observed, nodes: Mapping[str, Mapping[str, Any]]
) -> frozenset[str]:
    """Names of the pods that the budget need not protect.

    Args:
        job: supplies `leaveOnCordon` and `minGPUs`.
        observed: the job's pods and the GPUs that it may use.
        nodes: Node objects by name.
    """
    if job.spec.elastic.leave_on_cordon:
        return frozenset()
    cordoned = {n for n, node in nodes.items() if node.get("spec", {}).get("unschedulable")}
    left = sum(
        node.gpus
        for node in observed.nodes
        if node.name not in cordoned and node.leaving_at_s is None
    )
    if left < job.spec.elastic.min_gpus:
        return frozenset()
    return frozenset(pod.name for pod in observed.pods if pod.node in cordoned)
