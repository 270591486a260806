"""The seam between the decision loop and what runs pods: Kubernetes, processes, or a fake."""

from __future__ import annotations

from typing import Protocol

from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    PruneEpoch,
    SealEpoch,
)
from heddle_operator.state.snapshot import Observed

ClusterAction = AdoptPlan | SealEpoch | CloseEpoch | PruneEpoch | CreatePod | DeletePod


class Cluster(Protocol):
    """Nodes, pods and epoch records of one job.

    Invariant: every action is named, so that applying it twice equals applying it once.  An
    implementation sets the `Trigger` it was given whenever what it would answer has changed.
    """

    async def observe(self) -> Observed:
        """Nodes, pods and epoch records as they are now; the rest of the picture is left empty."""

    async def apply(self, action: ClusterAction) -> None:
        """Do one thing; several that do not depend on each other may be done at once.

        Raises:
            ClusterConflict: the record was written otherwise before, or it is the newest and its
                number would be used again; look again.
            ClusterUnavailable: it was not done, and may be done later.
        """
