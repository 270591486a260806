"""The words that programs read: why a job ends, waits or moves, and what its ranks and pods met.

Invariant: each is one CamelCase word, as Kubernetes' API conventions ask; sentences stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Why a job failed.
FailedReason = Literal[
    "StateLost", "Diverged", "DeterministicError", "DeadlineExceeded", "BackoffLimitExceeded"
]
# Why ranks get no device, or no wires between devices: the job's own set-up, its network, a GPU.
DeviceReason = Literal["SetupRefused", "FabricHangs", "GPUFailed"]
# Of each kind of error of devices, the one that concerns most ranks first.
DEVICE_REASONS: Mapping[str, DeviceReason] = {
    "setup": "SetupRefused",
    "fabric": "FabricHangs",
    "device": "GPUFailed",
}
# Why too few GPUs are usable, or no plan fits on them: there are no more, or some failed.
LackReason = Literal["InsufficientGPUs", "GPUFailed"]
# Why a job is in its phase, where that says more than the phase.
DecisionReason = (
    FailedReason
    | DeviceReason
    | LackReason
    | Literal[
        "CheckpointFailed",
        "CheckpointRefused",
        "CheckpointUnread",
        "CheckpointsDiffer",
        "OutputFailed",
        "PlanKept",
        "PlanRecommended",
        "PlanRefused",
        "PodsCannotStart",
        "RankStuck",
        "RecordUnread",
    ]
)
# What happened to a rank: it died with its pod, ended by itself, does not answer, halted with or
# without an error, is in a phase that it should not be in, or makes no progress.
LossReason = Literal["PodDied", "Exited", "Silent", "Halted", "WrongPhase", "Stalled"]
# What forces a job to another plan.
MoveKind = Literal[
    "RanksLost",
    "PriorityOfOtherJob",
    "NodeLeaving",
    "MaxGPUs",
    "NodeUnusable",
    "NodeGone",
    "GPUTypeNotAllowed",
    "GPUTypeChanged",
    "GPUFailed",
    "FewerGPUs",
    "PodTooLarge",
    "PlanUnpriced",
]
# What keeps a pod from starting: its image, its containers, the scheduler, its network or volumes,
# its own end, a refusal by the API server or by the kubelet, an agent that is not understood, or
# nobody knows what.
StartCause = Literal[
    "image", "container", "scheduling", "sandbox", "volume",
    "crash", "refused", "rejected", "agent", "slow",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MoveCause:
    """Why a plan must be left; `sentence` names node, pod or limit."""

    kind: MoveKind
    sentence: str
