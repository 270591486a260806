"""What quotas leave: by their resources, their scopes, and the words of a refusal."""

from __future__ import annotations

import pytest

from heddle_operator.inventory.quotas import headroom_of, is_quota_refusal, quota_in
from heddle_operator.state.snapshot import Headroom

GPUS = "requests.nvidia.com/gpu"
POD = {
    "containers": [
        {"name": "worker", "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}}},
        {"name": "side", "resources": {"requests": {"cpu": "1"}}},
    ],
    "initContainers": [{"name": "data", "resources": {"requests": {"cpu": "1200m"}}}],
    "priorityClassName": "high",
}
# As kube-apiserver 1.37 says it.
REFUSAL = (
    'pods "tiny-b-0" is forbidden: exceeded quota: team, requested: pods=1,'
    "requests.nvidia.com/gpu=4, used: pods=1,requests.nvidia.com/gpu=2, limited: pods=3,"
    "requests.nvidia.com/gpu=4"
)


def quota(name="team", used=None, spec=None, **hard):
    hard = {key.replace("_gpu", ".nvidia.com/gpu"): value for key, value in hard.items()}
    return {
        "metadata": {"name": name},
        "spec": spec or {},
        "status": {"hard": hard, "used": used or {}},
    }


def test_without_a_quota_nothing_is_limited():
    assert headroom_of((), POD) == Headroom()
    assert headroom_of([{"metadata": {"name": "new"}}], POD) == Headroom()


def test_the_tightest_quota_counts():
    rows = [quota("a", {GPUS: "2"}, requests_gpu="8"), quota("b", {GPUS: "1"}, requests_gpu="4")]
    assert headroom_of(rows, POD) == Headroom(3, None, "quota a, b")


def test_a_quota_that_is_exceeded_already_leaves_nothing():
    assert headroom_of([quota(used={GPUS: "9"}, requests_gpu="8")], POD).gpus == 0


@pytest.mark.parametrize(
    ("hard", "used", "pods"),
    [
        ({"pods": "5"}, {"pods": "2"}, 3),
        ({"count/pods": "1k"}, {}, 1000),
        ({"requests.cpu": "4"}, {"requests.cpu": "500m"}, 2),  # 1.5 cores a pod
        ({"cpu": "3"}, {}, 2),
        ({"limits.memory": "7Gi"}, {"limits.memory": "1Gi"}, 3),
        ({"requests.memory": "2Gi"}, {}, 1),  # what is limited is requested, too
        ({"persistentvolumeclaims": "0"}, {}, None),
        ({"limits.cpu": "1"}, {}, None),  # the pod limits none: that it must is told by a refusal
    ],
)
def test_what_a_pod_declares_is_counted(hard, used, pods):
    assert headroom_of([quota(used=used, **hard)], POD).pods == pods


@pytest.mark.parametrize(
    ("spec", "applies"),
    [
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, True),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}, True),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}]}}, False),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "Exists"}]}}, True),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}}, False),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "Terminating", "operator": "Exists"}]}}, False),
    ],
)  # fmt: skip
def test_a_quota_counts_only_in_its_scopes(spec, applies):
    assert (headroom_of([quota(spec=spec, pods="2")], POD).pods == 2) is applies


def test_a_refusal_teaches_its_quota():
    assert is_quota_refusal(REFUSAL)
    assert headroom_of([quota_in(REFUSAL)], POD) == Headroom(2, 2, "quota team")
    assert quota_in('pods "x" is forbidden: violates PodSecurity "restricted:latest"') is None
