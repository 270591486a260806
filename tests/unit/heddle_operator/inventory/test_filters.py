"""A node is refused where the scheduler would refuse it, and nowhere else."""

from __future__ import annotations

import pytest

from heddle_operator.inventory.filters import refusal_of, tolerates

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def a_node(labels=None, taints=(), conditions=(), **spec):
    return {
        "metadata": {"labels": labels or {}},
        "spec": {"taints": list(taints), **spec},
        "status": {"conditions": list(conditions)},
    }


def affine(operator, *values):
    expressions = [{"key": "k", "operator": operator, "values": list(values)}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.mark.parametrize(
    ("node", "pod", "why"),
    [
        (a_node(unschedulable=True), {}, "is cordoned"),
        (a_node(taints=[TAINT]), {}, "has the taint team, which the job does not tolerate"),
        (a_node(conditions=[{"type": "DiskPressure", "status": "True"}]), {}, "DiskPressure"),
        (a_node(), {"nodeSelector": {"k": "v"}}, "lacks the label k=v of the job's nodeSelector"),
        (a_node({"k": "w"}), affine("In", "v"), "does not match the job's node affinity"),
        (a_node({"k": "v"}), affine("NotIn", "v"), "node affinity"),
        (a_node(), affine("Exists"), "node affinity"),
        (a_node({"k": "3"}), affine("Gt", "3"), "node affinity"),
    ],
)
def test_a_refusal_says_why(node, pod, why):
    assert why in refusal_of(node, pod)


@pytest.mark.parametrize(
    ("node", "pod"),
    [
        (a_node(), {}),
        (a_node(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]), {}),
        (a_node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), {}),
        (a_node(taints=[TAINT]), {"tolerations": [{"key": "team", "operator": "Exists"}]}),
        (a_node({"k": "v"}), {"nodeSelector": {"k": "v"}}),
        (a_node({"k": "v"}), affine("In", "v", "w")),
        (a_node(), affine("DoesNotExist")),
        (a_node({"k": "2"}), affine("Lt", "3")),
    ],
)
def test_a_node_that_fits_is_taken(node, pod):
    assert refusal_of(node, pod) == ""


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "a"}, True),
        ({"key": "team", "value": "b"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_are_matched_as_the_scheduler_does(toleration, covers):
    assert tolerates(toleration, TAINT) is covers
