"""The words that programs read: why a job ended or waits, and what happened to its ranks.

Invariant: each is one CamelCase word, as Kubernetes' API conventions ask; sentences stand beside.
"""

from __future__ import annotations

from typing import Literal

# Why a job failed.
FailedReason = Literal[
    "StateLost", "Diverged", "DeterministicError", "DeadlineExceeded", "BackoffLimitExceeded"
]
# Why a job is in its phase, where that says more than the phase.
DecisionReason = (
    FailedReason
    | Literal[
        "InsufficientGPUs",
        "OutputFailed",
        "PlanKept",
        "PlanRecommended",
        "PlanRefused",
        "PodsCannotStart",
        "RankStuck",
    ]
)
# What happened to a rank: it died with its pod, ended by itself, does not answer, halted with or
# without an error, is in a phase that it should not be in, or makes no progress.
LossReason = Literal["PodDied", "Exited", "Silent", "Halted", "WrongPhase", "Stalled"]
