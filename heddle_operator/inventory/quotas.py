"""What the ResourceQuotas of a namespace leave for further pods of a job.

Invariant: only what a pod declares is counted; what admission adds to it (a LimitRange) is learnt
from the refusal of a pod.
Source: Kubernetes' ResourceQuota admission: its resources, scopes and the words of its refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from heddle_operator.inventory.quantities import amount
from heddle_operator.inventory.requests import GPU
from heddle_operator.state.snapshot import Headroom

GPU_QUOTA = f"requests.{GPU}"
_COUNTS = ("pods", "count/pods")
_REFUSED = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: .*?, used: (?P<used>.*?), limited: (?P<hard>.*)$"
)


def headroom_of(quotas: Iterable[Mapping[str, Any]], pod_spec: Mapping[str, Any]) -> Headroom:
    """What all quotas together leave.

    Args:
        quotas: ResourceQuota objects of the job's namespace.
        pod_spec: of the job's pods, without their GPUs.
    """
    gpus: dict[str, int] = {}
    pods: dict[str, int] = {}
    for quota in quotas:
        if not _applies(quota.get("spec") or {}, pod_spec):
            continue
        name, status = str(quota["metadata"]["name"]), quota.get("status") or {}
        used = status.get("used") or {}
        for resource, hard in (status.get("hard") or {}).items():
            left = max(Decimal(0), amount(hard) - amount(used.get(resource)))
            if resource == GPU_QUOTA:
                gpus[name] = int(left)
                continue
            asked = Decimal(1) if resource in _COUNTS else _asked(pod_spec, resource)
            if asked > 0:
                pods[name] = min(int(left / asked), pods.get(name, int(left / asked)))
    names = sorted(gpus.keys() | pods.keys())
    return Headroom(
        min(gpus.values(), default=None),
        min(pods.values(), default=None),
        f"quota {', '.join(names)}" if names else "",
    )


def is_quota_refusal(message: str) -> bool:
    """Whether a pod was refused for a quota."""
    return _REFUSED.search(message) is not None


def quota_in(message: str) -> Mapping[str, Any] | None:
    """The quota that a refusal tells of, as an object; None if it tells of none."""
    found = _REFUSED.search(message)
    if found is None:
        return None
    status = {key: _pairs(found[key]) for key in ("hard", "used")}
    return {"metadata": {"name": found["name"]}, "status": status}


def _pairs(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _applies(spec: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> bool:
    """Whether the quota's scopes match pods that ask for GPUs and have no deadline."""
    if {"Terminating", "BestEffort"} & set(spec.get("scopes") or ()):
        return False
    terms = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_matches(term, pod_spec) for term in terms)


def _matches(term: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> bool:
    if term.get("scopeName") != "PriorityClass":
        return term.get("scopeName") in ("NotTerminating", "NotBestEffort")
    found, values = pod_spec.get("priorityClassName"), term.get("values") or ()
    match term.get("operator"):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return bool(found)
        case _:
            return not found


def _asked(pod_spec: Mapping[str, Any], resource: str) -> Decimal:
    """How much of a quota's resource one pod asks for; 0 of what a quota counts otherwise."""
    kind = "limits" if resource.startswith("limits.") else "requests"
    name = resource.removeprefix(f"{kind}.")
    together = _sum(pod_spec.get("containers") or (), kind, name)
    rows = pod_spec.get("initContainers") or ()
    together += _sum([row for row in rows if row.get("restartPolicy") == "Always"], kind, name)
    return max([together, *(_sum([row], kind, name) for row in rows)])


def _sum(containers: Iterable[Mapping[str, Any]], kind: str, name: str) -> Decimal:
    total = Decimal(0)
    for container in containers:
        given = container.get("resources") or {}
        limits = given.get("limits") or {}
        # What is limited and not requested is requested by its limit.
        asked = {**limits, **(given.get("requests") or {})} if kind == "requests" else limits
        total += amount(asked.get(name))
    return total
