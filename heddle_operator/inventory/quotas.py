"""Rest of a namespace's ResourceQuotas for further pods of a job.

Invariant: only what a pod declares is counted; what admission adds to it (a LimitRange) is learnt
from the refusal of a pod.
Source: Kubernetes' ResourceQuota admission: its resources, scopes and the words of its refusals;
a pod's quality of service.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from heddle_operator.inventory.quantities import amount
from heddle_operator.inventory.requests import GPU
from heddle_operator.state.snapshot import Headroom

GPU_QUOTA = f"requests.{GPU}"
_COUNTS = ("pods", "count/pods")
_OF_QOS = ("cpu", "memory")
_REFUSED = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: .*?, used: (?P<used>.*?), limited: (?P<hard>.*)$"
)


def headroom_of(
    quotas: Iterable[Mapping[str, Any]],
    pod_spec: Mapping[str, Any],
    per_gpu: Mapping[str, str] = MappingProxyType({}),
) -> Headroom:
    """Rest of all quotas together.

    Args:
        quotas: ResourceQuota objects of the job's namespace.
        pod_spec: of the job's pods, without their GPUs and what they ask for with them.
        per_gpu: quantities that a pod requests with each of its GPUs, by resource.
    """
    gpus: dict[str, int] = {}
    pods: dict[str, int] = {}
    for quota in quotas:
        if not _applies(quota.get("spec") or {}, pod_spec, per_gpu):
            continue
        name, status = str(quota["metadata"]["name"]), quota.get("status") or {}
        used = status.get("used") or {}
        for resource, hard in (status.get("hard") or {}).items():
            left = max(Decimal(0), amount(hard) - amount(used.get(resource)))
            if resource == GPU_QUOTA:
                gpus[name] = min(int(left), gpus.get(name, int(left)))
                continue
            asked = Decimal(1) if resource in _COUNTS else _asked(pod_spec, resource)
            each = amount(per_gpu.get(resource.removeprefix("requests.")))
            if each > 0:  # with one pod; what further pods ask for besides is learnt by refusals
                fit = int(max(Decimal(0), left - asked) / each)
                gpus[name] = min(fit, gpus.get(name, fit))
            if asked > 0:
                fit = int(left / (asked + each))
                pods[name] = min(fit, pods.get(name, fit))
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


def _applies(
    spec: Mapping[str, Any], pod_spec: Mapping[str, Any], per_gpu: Mapping[str, str]
) -> bool:
    """Whether the quota's scopes match pods that ask for GPUs and have no deadline."""
    scopes = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    terms = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_matches(term, pod_spec, per_gpu) for term in (*scopes, *terms))


def _matches(
    term: Mapping[str, Any], pod_spec: Mapping[str, Any], per_gpu: Mapping[str, str]
) -> bool:
    if term.get("scopeName") in ("BestEffort", "NotBestEffort"):
        return _is_best_effort(pod_spec, per_gpu) is (term["scopeName"] == "BestEffort")
    if term.get("scopeName") == "CrossNamespacePodAffinity":
        return any(_reaches_out(row) for row in _affinity_terms(pod_spec))
    if term.get("scopeName") != "PriorityClass":
        return term.get("scopeName") == "NotTerminating"
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


def _is_best_effort(pod_spec: Mapping[str, Any], per_gpu: Mapping[str, str]) -> bool:
    """Whether the pod asks for neither CPU nor memory: GPUs are no matter of its class."""
    rows = (*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ()))
    given = [(row.get("resources") or {}) for row in (*rows, pod_spec)]
    asked = [part for each in given for part in (each.get("requests"), each.get("limits"))]
    return not any(
        amount((part or {}).get(name)) > 0 for part in (*asked, per_gpu) for name in _OF_QOS
    )


def _affinity_terms(pod_spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Terms of affinity, and of anti-affinity, to other pods."""
    for kind in ("podAffinity", "podAntiAffinity"):
        given = (pod_spec.get("affinity") or {}).get(kind) or {}
        yield from given.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for row in given.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield row.get("podAffinityTerm") or {}


def _reaches_out(term: Mapping[str, Any]) -> bool:
    """Whether a term is about pods of other namespaces, too."""
    return bool(term.get("namespaces")) or term.get("namespaceSelector") is not None


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
