"""Whether a pod that waits for the scheduler keeps others off the GPUs that it claims.

Anybody who may create pods can tie one to a node and let it wait for ever: for a scheduler that is
not there, for more memory than is free, on a node with a taint.
Invariant: such a claim ends by itself; what holds GPUs holds them without any claim.
Source: Kubernetes' scheduler: `PodNominator` and the filters that a pod must pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any

from heddle_operator.apis.times import wall_s_if_time
from heddle_operator.inventory.filters import refusal_of
from heddle_operator.inventory.quantities import amount
from heddle_operator.inventory.requests import GPU, GpuAllocation, Requests, Waiting
from planner.wording import counted, joined

CLAIM_S = 30.0  # so long a claim counts whatever it asks for: a scheduler is asked within seconds
_NOTHING = Decimal(0)


def counts(
    claim: GpuAllocation,
    node: Mapping[str, Any],
    requested: Requests,
    now_wall_s: float,
    schedulers: Collection[str],
) -> bool:
    """Whether the GPUs that a pod waits for are to be left to it.

    Args:
        claim: of the pod.
        node: the Node object that it is tied to.
        requested: what pods that are bound to the node ask for together.
        now_wall_s: of the wall clock.
        schedulers: that are known to work.
    """
    if claim.gpus > amount(_allocatable(node).get(GPU)):
        return False
    waiting = claim.waiting
    since_s = wall_s_if_time(waiting.since) if waiting is not None else None
    if waiting is None or since_s is None or now_wall_s - since_s < CLAIM_S:
        return True
    return waiting.scheduler in schedulers and _fits(waiting, node, requested)


def in_words(claims: Iterable[GpuAllocation]) -> str:
    """Pods that wait for GPUs of a node."""
    return joined(
        f"pod {claim.pod} of namespace {claim.namespace} waits for {counted(claim.gpus, 'GPU')}"
        for claim in claims
    )


def _fits(waiting: Waiting, node: Mapping[str, Any], requested: Requests) -> bool:
    """Whether the scheduler could bind the pod to the node as it is."""
    has = _allocatable(node)
    for name, asked in waiting.requests.items():
        is_told = name in has or name != "pods"
        if is_told and asked > max(_NOTHING, amount(has.get(name)) - requested.get(name, _NOTHING)):
            return False
    return not refusal_of(node, waiting.spec)


def _allocatable(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return (node.get("status") or {}).get("allocatable") or {}
