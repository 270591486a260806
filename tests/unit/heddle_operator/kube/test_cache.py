"""The cache holds the newest of what it was told, in whatever order it was told."""

from __future__ import annotations

import pytest

from heddle_operator.kube.cache import ObjectCache


def a_pod(version, uid="u1", job="j1", gpus=1, node="n1", phase="Running", namespace="ns"):
    return {
        "metadata": {
            "name": f"pod-{uid}", "namespace": namespace, "uid": uid,
            "resourceVersion": str(version),
            "labels": {"heddle.dev/job": "tiny"},
            "ownerReferences": [{"uid": job, "controller": True}],
        },
        "spec": {"nodeName": node, "containers": [
            {"resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}]},
        "status": {"phase": phase},
    }  # fmt: skip


def a_node(version, heartbeat="1", gpus="4"):
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}
    return {
        "metadata": {"name": "n1", "uid": "n", "resourceVersion": str(version)},
        "status": {"capacity": {"nvidia.com/gpu": gpus}, "conditions": [condition]},
    }


def versions(cache):
    return [body["metadata"]["resourceVersion"] for body in cache.own("Pod", "ns", "j1")]


def test_an_older_object_never_replaces_a_newer_one():
    cache = ObjectCache()
    cache.put("Pod", a_pod(10))
    cache.put("Pod", a_pod(9))
    assert versions(cache) == ["10"]


def test_a_deleted_object_does_not_come_back():
    cache = ObjectCache()
    cache.put("Pod", a_pod(10))
    cache.drop("u1")
    cache.put("Pod", a_pod(9))
    assert versions(cache) == []
    assert cache.allocations == {}


def test_objects_of_other_jobs_are_other_jobs():
    cache = ObjectCache()
    cache.put("Pod", a_pod(1, "u1", "j1"))
    cache.put("Pod", a_pod(2, "u2", "j2"))
    assert [body["metadata"]["uid"] for body in cache.own("Pod", "ns", "j2")] == ["u2"]


def test_an_owner_is_of_the_namespace_of_what_it_owns():
    cache = ObjectCache()
    cache.put("Pod", a_pod(1, namespace="elsewhere"))
    assert versions(cache) == []
    (allocation,) = cache.allocations.values()
    assert allocation.owner == ("elsewhere", "j1")


def test_what_has_the_label_of_a_job_and_no_owner_is_not_kept():
    cache = ObjectCache()
    orphan = a_pod(1)
    del orphan["metadata"]["ownerReferences"]
    cache.put("Pod", orphan)
    assert cache.own("Pod", "ns", "") == ()
    assert cache.allocations["u1"].gpus == 1


@pytest.mark.parametrize("owners", [None, [{"uid": "j2", "controller": True}]])
def test_a_pod_whose_owner_is_taken_off_is_the_jobs_no_more(owners):
    told = []
    cache = ObjectCache(told.append)
    cache.put("Pod", a_pod(1))
    changed = a_pod(2)
    changed["metadata"]["ownerReferences"] = owners
    cache.put("Pod", changed)
    cache.put("Pod", a_pod(1))  # an answer that is late
    assert versions(cache) == []
    assert told[:2] == ["j1", "j1"]
    assert cache.allocations["u1"].gpus == 1


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_pod_whose_label_is_taken_off_still_holds_its_gpus(is_told_first):
    """The watch of labelled pods tells that it is gone, that of the others that it is there."""
    cache = ObjectCache()
    cache.put("Pod", a_pod(1))
    bare = a_pod(2)
    del bare["metadata"]["labels"]
    tells = [lambda: cache.put("Pod", bare), lambda: cache.drop("u1", 2)]
    for tell in tells if is_told_first else reversed(tells):
        tell()
    assert versions(cache) == []
    assert cache.allocations["u1"].gpus == 1
    cache.put("Pod", a_pod(3))
    cache.release("u1")
    assert versions(cache) == ["3"]
    assert cache.allocations["u1"].gpus == 1


def test_an_answer_that_is_late_takes_no_gpus_from_a_pod():
    cache = ObjectCache()
    cache.put("Pod", a_pod(2, gpus=4))
    cache.put("Pod", a_pod(1, gpus=4, node=""))  # as it was made, before it was bound
    assert cache.allocations["u1"].gpus == 4


def test_a_pod_that_ends_gives_its_gpus_back():
    cache = ObjectCache()
    cache.put("Pod", a_pod(1))
    assert cache.allocations["u1"].gpus == 1
    cache.put("Pod", a_pod(2, phase="Succeeded"))
    assert cache.allocations == {}


def test_a_full_list_drops_what_it_does_not_hold():
    cache = ObjectCache()
    cache.put("Pod", a_pod(1, "u1"))
    cache.put("Pod", a_pod(2, "u2"))
    cache.put("Pod", a_pod(9, "u3"))
    cache.keep_only("ConfigMap", "", [], 5)
    cache.keep_only("Pod", "elsewhere", [], 5)
    assert set(cache.allocations) == {"u1", "u2", "u3"}
    cache.keep_only("Pod", "", ["u2"], 5)  # u3 was made after the list
    assert set(cache.allocations) == {"u2", "u3"}


def test_a_pod_of_another_that_is_told_no_more_holds_nothing():
    cache = ObjectCache()
    cache.put("Pod", a_pod(1, "u1"))
    foreign = a_pod(2, "u2")
    cache.put("Pod", {**foreign, "metadata": {**foreign["metadata"], "labels": {}}})
    assert set(cache.allocations) == {"u1", "u2"}
    cache.release("u1")
    cache.release("u2")
    assert set(cache.allocations) == {"u1"}


class Follower:
    """Notes which nodes it is told of."""

    def __init__(self):
        self.told = []

    def node_changed(self, name):
        self.told.append(name)


def test_a_heartbeat_tells_nobody_of_a_node():
    cache, follower = ObjectCache(), Follower()
    cache.followers.add(follower)
    cache.put_node(a_node(1))
    cache.put_node(a_node(3, heartbeat="2"))
    assert follower.told == ["n1"]
    cache.put_node(a_node(2, gpus="3"))  # older than the heartbeat
    assert follower.told == ["n1"]
    cache.put_node(a_node(4, gpus="3"))
    cache.drop_node("n1")
    assert follower.told == ["n1"] * 3


def test_a_pod_that_takes_or_leaves_gpus_tells_of_its_node():
    cache, follower = ObjectCache(), Follower()
    cache.followers.add(follower)
    cache.put("Pod", a_pod(1))
    cache.put("Pod", a_pod(2))
    cache.put("Pod", a_pod(3, phase="Succeeded"))
    assert follower.told == ["n1"] * 2


def test_a_jobs_own_objects_wake_that_job():
    told = []
    cache = ObjectCache(told.append)
    cache.put("ConfigMap", {**a_pod(1, gpus=0), "spec": {}, "status": {}})
    assert told == ["j1"]


def with_port(port, version, uid, **how):
    pod = a_pod(version, uid, **how)
    pod["metadata"]["labels"], pod["metadata"]["ownerReferences"] = {}, []
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": port}]
    return pod


def test_ports_of_a_node_are_those_of_all_pods_there_until_they_end():
    cache = ObjectCache()
    cache.put("Pod", with_port(8500, 1, "consul"))
    cache.put("Pod", with_port(8502, 1, "other", node="n2"))
    own = a_pod(1, "own", node="")
    own["metadata"]["annotations"] = {"heddle.dev/node": "n1"}
    own["spec"]["containers"][0]["ports"] = [{"hostPort": 8470}]
    cache.put("Pod", own)
    assert cache.host_ports("n1") == {8500, 8470}
    assert cache.host_ports("n2") == {8502}
    cache.release("consul")
    cache.release("other")
    assert (cache.host_ports("n1"), cache.host_ports("n2")) == ({8470}, frozenset())


class Read(dict):
    """A part of an object that counts how often it is read."""

    times = 0

    def get(self, *key):
        self.times += 1
        return super().get(*key)


def test_of_the_ports_of_a_node_no_pod_is_read_again():
    """A job that makes 1,000 pods asks for them 1,000 times, beside the pods of all jobs."""
    cache = ObjectCache()
    own = a_pod(1, "own", node="")
    own["metadata"]["annotations"] = {"heddle.dev/node": "n1"}
    own["spec"]["containers"][0]["ports"] = [{"hostPort": 8470}]
    own["spec"] = Read(own["spec"])
    cache.put("Pod", own)
    read = own["spec"].times
    assert (cache.host_ports("n1"), cache.host_ports("n2")) == ({8470}, frozenset())
    assert own["spec"].times == read
    cache.drop("own")
    assert cache.host_ports("n1") == frozenset()
