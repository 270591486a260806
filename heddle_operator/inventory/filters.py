"""Whether the scheduler would put a pod of the job on a node: taints, selectors, pressure.

Invariant: says no only where the scheduler would; GPUs are counted elsewhere.
Source: Kubernetes' scheduler (taints and tolerations, node affinity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
GPU_TAINT = "nvidia.com/gpu"  # pods that ask for GPUs tolerate it, as clouds' admission adds it
_CORDON_TAINT = "node.kubernetes.io/unschedulable"


def refusal_of(node: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> str:
    """Why the node takes no new pod of the job, in words; "" if it does.

    Args:
        node: a Node object.
        pod_spec: of the job's pods: `tolerations`, `nodeSelector`, `affinity`.
    """
    spec, status = node.get("spec", {}), node.get("status", {})
    if spec.get("unschedulable"):
        return "is cordoned"
    for condition in status.get("conditions") or ():
        if condition["type"] in _PRESSURES and condition.get("status") == "True":
            return f"has the condition {condition['type']}"
    tolerations = pod_spec.get("tolerations") or ()
    for taint in spec.get("taints") or ():
        hard = taint.get("effect") in ("NoSchedule", "NoExecute")
        known = taint.get("key") in (GPU_TAINT, _CORDON_TAINT)
        if hard and not known and not any(tolerates(t, taint) for t in tolerations):
            return f"has the taint {taint['key']}, which the job does not tolerate"
    labels = node.get("metadata", {}).get("labels") or {}
    for key, value in (pod_spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"lacks the label {key}={value} of the job's nodeSelector"
    required = ((pod_spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = required.get("nodeSelectorTerms")
    if terms and not any(_matches(term.get("matchExpressions") or (), labels) for term in terms):
        return "does not match the job's node affinity"
    return ""


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration covers a taint."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (
        taint.get("value") or ""
    )


def _matches(expressions: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    return all(_holds(expression, labels) for expression in expressions)


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    found: str | None = labels.get(expression["key"])
    values: list[str] = list(expression.get("values") or ())
    match expression["operator"]:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt":
            return found is not None and found.isdigit() and int(found) > int(values[0])
        case "Lt":
            return found is not None and found.isdigit() and int(found) < int(values[0])
        case _:
            return False
