"""The wire that the ranks of a job are asked to use: one rule for operator, agents and ranks.

The operator prices plans by it, an agent reports it, and a rank forms its groups on it.
It imports nothing heavy.
"""

from __future__ import annotations

from typing import Literal, get_args

from planner.model.workload import GpuWire
from worker.errors import SetupUnusable

WireName = Literal["gloo", "staged", "nccl"]
Asked = Literal["auto", "staged", "nccl"]
ASKED: tuple[Asked, ...] = get_args(Asked)
VARIABLE = "HEDDLE_WIRE"  # by which the administrator of a cluster asks for one
AUTO_ON_A_GPU: GpuWire = "staged"  # NCCL has never run here; see docs/decisions/0031


def wire_asked(device: str, said: str) -> WireName:
    """The wire of a rank, if it can be had there.

    Args:
        device: cpu or cuda.
        said: value of the variable; empty: nothing was asked for.

    Raises:
        SetupUnusable: nobody knows that wire.
    """
    word = said.lower() or "auto"
    if word not in ASKED:
        raise SetupUnusable(
            f"{{field}} is {said!r}, and {', '.join(ASKED)} are known; choose one of them",
            field=VARIABLE,
            code="Unknown",
        )
    if device == "cpu":
        return "gloo"
    if word == "auto":
        return AUTO_ON_A_GPU
    return "nccl" if word == "nccl" else "staged"
