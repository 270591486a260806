"""Bodies say what the design says: place, GPUs and identity are ours, the rest may be added to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.resources.pods import (
    GRACE_S,
    WorkerDefaults,
    per_gpu_of,
    pod_body,
    pod_spec_of,
    with_data_folder,
)
from heddle_operator.state.actions import CreatePod
from tests.unit.heddle_operator.resources.jobs import a_job

ACTION = CreatePod("tiny-n1-0", "n1", 0, 2)
DEFAULTS = WorkerDefaults(image="heddle:1", template={})


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
    forbidden = {"restartPolicy": "Always", "enableServiceLinks": True}
    spec = a_pod({"spec": forbidden, "metadata": {"labels": {"heddle.dev/job": "x"}}})
    assert spec["spec"]["restartPolicy"] == "Never"
    assert spec["spec"]["enableServiceLinks"] is False
    assert spec["spec"]["automountServiceAccountToken"] is False
    assert spec["metadata"]["labels"]["heddle.dev/job"] == "tiny"


def test_no_container_of_a_pod_may_become_more_than_it_is():
    """The Pod Security Standard `restricted`; a real API server enforces it in the contracts."""
    containers = [{"name": "sidecar", "securityContext": {"runAsUser": 7}}]
    spec = a_pod({"spec": {"containers": containers, "initContainers": [{"name": "i"}]}})["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["containers"], *spec["initContainers"]):
        secured = container["securityContext"]
        assert secured["allowPrivilegeEscalation"] is False
        assert secured["capabilities"] == {"drop": ["ALL"]}
    assert [c["name"] for c in spec["initContainers"]] == ["i", "data"]
    assert spec["containers"][1]["securityContext"]["runAsUser"] == 7


@pytest.mark.parametrize(
    "allowed", [{"privileged": True}, {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}]
)
def test_a_container_that_may_be_privileged_is_not_denied_it_in_the_same_breath(allowed):
    containers = [{"name": "worker", "securityContext": allowed}, {"name": "sidecar"}]
    first, second = a_pod({"spec": {"containers": containers}})["spec"]["containers"]
    assert "allowPrivilegeEscalation" not in first["securityContext"]
    assert second["securityContext"]["allowPrivilegeEscalation"] is False


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


def test_the_administrators_template_trumps_the_job_which_trumps_the_defaults():
    ruled, default = (
        {"metadata": {"labels": {name: "admin"}}, "spec": {"nodeSelector": {name: "admin"}}}
        for name in ("ruled", "default")
    )
    asked = {
        "metadata": {"labels": {"ruled": "job", "default": "job"}},
        "spec": {"nodeSelector": {"ruled": "job", "default": "job"}},
    }
    pod = a_pod(asked, WorkerDefaults(image="heddle:1", template=ruled, base=default))
    for found in (pod["metadata"]["labels"], pod["spec"]["nodeSelector"]):
        assert (found["ruled"], found["default"]) == ("admin", "job")
    pod = a_pod({}, WorkerDefaults(image="heddle:1", template=ruled, base=default))
    assert pod["spec"]["nodeSelector"] == {"ruled": "admin", "default": "admin"}


def test_probes_of_the_worker_are_not_those_of_the_container_that_makes_its_data():
    probed = {"name": "worker", "livenessProbe": {"httpGet": {"path": "/", "port": 1}}}
    defaults = WorkerDefaults(image="heddle:1", template={"spec": {"containers": [probed]}})
    (data,) = a_pod(defaults=defaults)["spec"]["initContainers"]
    assert "livenessProbe" not in data


def test_the_agent_knows_how_long_its_grace_is():
    arguments = worker(a_pod({"spec": {"terminationGracePeriodSeconds": 90}}))["args"]
    assert arguments[arguments.index("--grace-s") + 1] == "90"
    arguments = worker(a_pod())["args"]
    assert arguments[arguments.index("--grace-s") + 1] == str(GRACE_S)


def test_shared_memory_is_memory_and_the_token_a_secret():
    volumes = {v["name"]: v for v in a_pod()["spec"]["volumes"]}
    assert volumes["heddle-shm"]["emptyDir"]["medium"] == "Memory"
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
    assert data["args"][data["args"].index("--output-path") + 1] == prefix
    assert "nvidia.com/gpu" not in data["resources"].get("limits", {})


def test_each_text_of_the_users_own_is_made_by_a_container_of_its_own():
    blend = [{"path": f"/d/{name}.jsonl", "weight": 1} for name in "ab"]
    found = a_pod(blend=blend, tokenizer="/m")["spec"]["initContainers"]
    assert [container["name"] for container in found] == ["data", "data-1"]
    read = with_data_folder(a_job(blend=blend, tokenizer="/m")).training.data
    outputs = [c["args"][c["args"].index("--output-path") + 1] for c in found]
    assert outputs == [corpus.path for corpus in read.blend]


def test_data_of_the_users_own_needs_no_init_container():
    assert "initContainers" not in a_pod(path="/data/corpus")["spec"]
    own = with_data_folder(a_job(path="/data/corpus"))
    assert own.training.data.blend[0].path == "/data/corpus"


def test_the_agent_knows_the_peer_timeout_of_the_job():
    arguments = worker(a_pod())["args"]
    assert arguments[arguments.index("--peer-timeout-s") + 1] == "10"


def test_a_pod_asks_for_its_share_of_the_node_for_each_of_its_gpus():
    defaults = replace(DEFAULTS, per_gpu={"cpu": "500m", "memory": "64Gi", "rdma/hca": "1"})
    resources = worker(a_pod(defaults=defaults))["resources"]
    share = {"cpu": "1000m", "memory": "128Gi", "rdma/hca": "2", "nvidia.com/gpu": "2"}
    assert resources["requests"] == share
    assert resources["limits"] == {"rdma/hca": "2", "nvidia.com/gpu": "2"}
    (data,) = a_pod(defaults=defaults)["spec"]["initContainers"]
    requests = {name: share[name] for name in ("cpu", "memory")}
    assert data["resources"] == {"requests": requests, "limits": {}}  # as a quota asks of each
    own = {"requests": {"cpu": "7"}, "limits": {"memory": "8Gi"}}
    template = {"spec": {"containers": [{"name": "worker", "resources": own}]}}
    resources = worker(a_pod(template, defaults))["resources"]
    assert resources["requests"]["cpu"] == "7"
    assert "memory" not in resources["requests"]  # Kubernetes asks for the limit
    spec = pod_spec_of(a_job(template), defaults)
    assert per_gpu_of(spec, defaults) == {"rdma/hca": "1"}
    assert per_gpu_of(pod_spec_of(a_job(), defaults), defaults) == defaults.per_gpu


def test_shared_memory_has_a_limit_for_each_gpu_and_the_root_is_read_only():
    volumes = {volume["name"]: volume for volume in a_pod()["spec"]["volumes"]}
    assert volumes["heddle-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert "sizeLimit" not in volumes["heddle-tmp"]["emptyDir"]
    own = {"spec": {"volumes": [{"name": "heddle-shm", "emptyDir": {"sizeLimit": "1Gi"}}]}}
    volumes = {volume["name"]: volume for volume in a_pod(own)["spec"]["volumes"]}
    assert volumes["heddle-shm"]["emptyDir"]["sizeLimit"] == "1Gi"
    assert worker(a_pod())["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_worker_is_ready_when_its_agent_answers_and_has_time_to():
    container = worker(a_pod())
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": 8470}
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 120


def test_an_agent_is_told_of_a_device_that_the_job_chooses():
    job = a_job()
    arguments = pod_body(job, ACTION, DEFAULTS, 0.0)["spec"]["containers"][0]["args"]
    assert "--device" not in arguments  # an older agent would not know it
    worker = job.spec.worker.model_copy(update={"device": "CUDA"})
    spec = job.spec.model_copy(update={"worker": worker})
    pod = pod_body(job.model_copy(update={"spec": spec}), ACTION, DEFAULTS, 0.0)
    (agent,) = (row for row in pod["spec"]["containers"] if row["name"] == "worker")
    assert agent["args"][agent["args"].index("--device") + 1] == "cuda"
    env = {row["name"]: row.get("value") for row in agent["env"]}
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
