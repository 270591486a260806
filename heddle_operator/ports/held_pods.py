"""A cluster in which a job may make no pod, because its template is refused.

Invariant: no pod is made; a plan that needs one is told what it would hear from an API server that
refuses the pod, so that it is given up and does without.
"""

from __future__ import annotations

import time
from dataclasses import replace

from heddle_operator.ports.cluster import Cluster, ClusterAction
from heddle_operator.ports.refused_pods import RefusedPods
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import CreatePod
from heddle_operator.state.snapshot import Observed


class HeldPods:
    """`Cluster` but for the making of pods.

    Args:
        cluster: does everything else.
        why: no pod is made, in a sentence.
        trigger: is set when a pod was asked for.
    """

    def __init__(self, cluster: Cluster, why: str, trigger: Trigger) -> None:
        self._cluster = cluster
        self._why = why
        self._trigger = trigger
        self._refused = RefusedPods()

    async def observe(self) -> Observed:
        """See `Cluster`; every pod that was asked for is refused."""
        seen = await self._cluster.observe()
        refused = self._refused.wanted(seen.pods, seen.epochs)
        return replace(seen, template_problem=self._why, refusals=(*seen.refusals, *refused))

    async def apply(self, action: ClusterAction) -> None:
        """See `Cluster`.

        Raises:
            ClusterConflict: as `Cluster`.
            ClusterUnavailable: likewise.
        """
        if not isinstance(action, CreatePod):
            await self._cluster.apply(action)
            return
        self._refused.note(action, self._why, time.monotonic())
        self._trigger.set()
