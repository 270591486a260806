"""What forces a job to another plan: one word for programs, one sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
]


@dataclass(frozen=True, slots=True)
class MoveCause:
    """Why a plan must be left; `sentence` names node, pod or limit."""

    kind: MoveKind
    sentence: str
