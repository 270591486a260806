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
        ({"requests.cpu": 4.5}, {"requests.cpu": 1.5}, 2),
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
        ({"scopes": ["PriorityClass"]}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopes": ["VolumeAttributesClass"]}, False),
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


BARE = {"containers": [{"name": "worker", "resources": {}}], "initContainers": [{"name": "data"}]}


@pytest.mark.parametrize(
    ("added", "per_gpu", "is_best_effort"),
    [
        ({}, {}, True),
        ({}, {"rdma/hca": "1"}, True),
        ({}, {"cpu": "0"}, True),
        ({}, {"cpu": "8"}, False),
        ({}, {"memory": "64Gi"}, False),
        ({"containers": [{"name": "worker", "resources": {"limits": {"memory": "1"}}}]}, {}, False),
        ({"initContainers": [{"name": "a", "resources": {"requests": {"cpu": 1}}}]}, {}, False),
        ({"resources": {"requests": {"cpu": "1"}}}, {}, False),
        ({"containers": [{"name": "worker", "resources": {"requests": None}}]}, {}, True),
    ],
)
def test_a_pod_without_cpu_and_memory_is_best_effort(added, per_gpu, is_best_effort):
    spec = {**BARE, **added}
    for scope, applies in (("BestEffort", is_best_effort), ("NotBestEffort", not is_best_effort)):
        by_name = {"scopes": [scope]}
        term = {"scopeName": scope, "operator": "Exists"}
        by_term = {"scopeSelector": {"matchExpressions": [term]}}
        for each in (by_name, by_term):
            found = headroom_of([quota(spec=each, pods="2")], spec, per_gpu)
            assert found.pods == (2 if applies else None), scope


def test_a_refusal_teaches_its_quota():
    assert is_quota_refusal(REFUSAL)
    assert headroom_of([quota_in(REFUSAL)], POD) == Headroom(2, 2, "quota team")
    assert quota_in('pods "x" is forbidden: violates PodSecurity "restricted:latest"') is None


@pytest.mark.parametrize(
    ("hard", "used", "room"),
    [
        ({"requests.cpu": "40"}, {"requests.cpu": "6"}, Headroom(4, 3, "quota team")),
        ({"cpu": "9"}, {}, Headroom(0, 0, "quota team")),
        ({"requests.memory": "128Gi"}, {}, Headroom(1, 1, "quota team")),
        ({"limits.cpu": "8"}, {}, Headroom()),
    ],
)
def test_what_a_pod_asks_for_with_each_gpu_limits_its_gpus(hard, used, room):
    """A pod asks for 1.5 cores and 2 GiB, and for 8 and 64 with each GPU."""
    per_gpu = {"cpu": "8", "memory": "64Gi"}
    assert headroom_of([quota(used=used, **hard)], POD, per_gpu) == room
    gpus = quota("gpus", requests_gpu="2")
    assert headroom_of([quota(used=used, **hard), gpus], POD, per_gpu).gpus == min(
        2, 2 if room.gpus is None else room.gpus
    )


@pytest.mark.parametrize(
    ("term", "applies"),
    [
        ({"topologyKey": "zone"}, False),
        ({"topologyKey": "zone", "namespaces": ["other"]}, True),
        ({"topologyKey": "zone", "namespaceSelector": {}}, True),
    ],
)
def test_a_quota_of_affinity_across_namespaces_counts_pods_that_have_one(term, applies):
    rows = [quota(spec={"scopes": ["CrossNamespacePodAffinity"]}, pods="0")]
    for affinity in (
        {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        {"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]
        }},
    ):  # fmt: skip
        found = headroom_of(rows, {**POD, "affinity": affinity}).pods
        assert found == (0 if applies else None)


def test_a_quota_of_priorities_counts_pods_that_name_one():
    rows = [quota(spec={"scopes": ["PriorityClass"]}, pods="0")]
    assert headroom_of(rows, {**POD, "priorityClassName": None}) == Headroom()
