"""Bodies say what the design says: place, GPUs and identity are ours, the rest may be added to."""

from __future__ import annotations

from heddle_operator.resources.pods import GRACE_S, WorkerDefaults, pod_body, with_data_folder
from heddle_operator.state.actions import CreatePod
from tests.unit.heddle_operator.resources.jobs import a_job

ACTION = CreatePod("tiny-n1-0", "n1", 0, 2)
DEFAULTS = WorkerDefaults("heddle:1", {})


def a_pod(template=None, defaults=DEFAULTS, **data):
    return pod_body(a_job(template, **data), ACTION, defaults, 12.5)


def worker(pod):
    return pod["spec"]["containers"][0]


def test_the_job_controls_its_pods_without_blocking_its_own_deletion():
    (owner,) = a_pod()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("HeddleJob", "u-1", True)
    assert owner["blockOwnerDeletion"] is False


def test_a_pod_asks_for_exactly_the_gpus_that_were_granted():
    template = {"spec": {"containers": [{"name": "worker", "resources": {
        "limits": {"nvidia.com/gpu": "8", "cpu": "4"}}}]}}  # fmt: skip
    resources = worker(a_pod(template))["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "2", "cpu": "4"}
    assert resources["requests"] == {"nvidia.com/gpu": "2"}


def required_terms(pod):
    nodes = pod["spec"]["affinity"]["nodeAffinity"]
    return nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


THIS_NODE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}


def test_a_pod_is_tied_to_its_node_and_scheduled_by_the_real_scheduler():
    assert required_terms(a_pod()) == [{"matchFields": [THIS_NODE]}]
    assert "nodeName" not in a_pod({"spec": {"nodeName": "other"}})["spec"]


def test_each_alternative_of_the_users_affinity_is_tied_too():
    terms = [{"matchExpressions": [{"key": k, "operator": "Exists"}]} for k in "ab"]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = a_pod({"spec": {"affinity": {"nodeAffinity": required}}})
    assert [term["matchFields"] for term in required_terms(pod)] == [[THIS_NODE]] * 2
    assert [term["matchExpressions"][0]["key"] for term in required_terms(pod)] == ["a", "b"]


def test_what_a_template_may_not_change_stays():
    forbidden = {"restartPolicy": "Always", "automountServiceAccountToken": True}
    spec = a_pod({"spec": forbidden, "metadata": {"labels": {"heddle.dev/job": "x"}}})
    assert spec["spec"]["restartPolicy"] == "Never"
    assert spec["spec"]["automountServiceAccountToken"] is False
    assert spec["metadata"]["labels"]["heddle.dev/job"] == "tiny"


def test_what_a_template_adds_is_merged_by_name():
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "volumes": [{"name": "out", "emptyDir": {}}],
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "containers": [
                {"name": "worker", "image": "mine:2", "args": ["--emulate"],
                 "env": [{"name": "HOME", "value": "/out"}, {"name": "X", "value": "1"}],
                 "volumeMounts": [{"name": "out", "mountPath": "/out"}]},
                {"name": "sidecar", "image": "s"},
            ],
        },
    }  # fmt: skip
    pod = a_pod(template)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "b"
    assert {v["name"] for v in pod["spec"]["volumes"]} >= {"out", "heddle-shm", "heddle-token"}
    assert {t.get("key") for t in pod["spec"]["tolerations"]} >= {"team", "nvidia.com/gpu"}
    assert [c["name"] for c in pod["spec"]["containers"]] == ["worker", "sidecar"]
    agent = worker(pod)
    env = {e["name"]: e.get("value") for e in agent["env"]}
    assert (agent["image"], env["HOME"], env["X"], env["USER"]) == ("mine:2", "/out", "1", "heddle")
    assert agent["args"][:2] == ["worker", "agent"]
    assert agent["args"][-1] == "--emulate"


def test_the_job_trumps_the_administrator():
    defaults = WorkerDefaults("heddle:1", {"spec": {"schedulerName": "a", "priority": 1}})
    spec = a_pod({"spec": {"schedulerName": "b"}}, defaults)["spec"]
    assert (spec["schedulerName"], spec["priority"]) == ("b", 1)


def test_the_agent_knows_how_long_its_grace_is():
    arguments = worker(a_pod({"spec": {"terminationGracePeriodSeconds": 90}}))["args"]
    assert arguments[arguments.index("--grace-s") + 1] == "90"
    arguments = worker(a_pod())["args"]
    assert arguments[arguments.index("--grace-s") + 1] == str(GRACE_S)


def test_shared_memory_is_memory_and_the_token_a_secret():
    volumes = {v["name"]: v for v in a_pod()["spec"]["volumes"]}
    assert volumes["heddle-shm"]["emptyDir"] == {"medium": "Memory"}
    assert volumes["heddle-token"]["secret"]["secretName"] == "tiny-token"


def test_a_node_that_is_not_ready_costs_its_pods_soon():
    seconds = {t.get("key"): t.get("tolerationSeconds") for t in a_pod()["spec"]["tolerations"]}
    assert seconds["node.kubernetes.io/not-ready"] == 10
    assert seconds["node.kubernetes.io/unreachable"] == 10


def test_built_in_text_is_made_where_the_worker_reads_it():
    template = {"spec": {"containers": [{"name": "worker", "command": ["h"]}]}}
    (data,) = a_pod(template)["spec"]["initContainers"]
    prefix = with_data_folder(a_job()).training.data.blend[0].path
    assert data["command"] == ["h"]
    assert data["args"][data["args"].index("--output") + 1] == prefix
    assert "nvidia.com/gpu" not in data["resources"].get("limits", {})


def test_data_of_the_users_own_needs_no_init_container():
    assert "initContainers" not in a_pod(path="/data/corpus")["spec"]
    own = with_data_folder(a_job(path="/data/corpus"))
    assert own.training.data.blend[0].path == "/data/corpus"


def test_the_agent_knows_the_peer_timeout_of_the_job():
    arguments = worker(a_pod())["args"]
    assert arguments[arguments.index("--peer-timeout-s") + 1] == "10"
