"""The Job that works on checkpoints is a worker pod without GPUs, and holds no more than one."""

from __future__ import annotations

import json

import pytest

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.resources.checkpoint_job import (
    check_accepted,
    check_target,
    checkpoint_job_body,
    checkpoint_job_name,
)
from heddle_operator.resources.pods import WorkerDefaults, pod_body
from heddle_operator.state.actions import CreatePod
from tests.unit.heddle_operator.resources.jobs import a_job

DEFAULTS = WorkerDefaults(
    image="heddle:1",
    template={"metadata": {"labels": {"queue": "q"}}, "spec": {"runtimeClassName": "nvidia"}},
    base={"spec": {"containers": [{"name": "worker", "command": ["heddle"], "args": ["--x"]}]}},
    per_gpu={"rdma/nic": "1"},
)
TEMPLATE = {
    "metadata": {"labels": {"team": "a", "app.kubernetes.io/component": "worker"}},
    "spec": {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "affinity": {"podAffinity": {}},
        "imagePullSecrets": [{"name": "pull"}],
        "priorityClassName": "low",
        "securityContext": {"fsGroup": 7},
        "initContainers": [{"name": "fetch", "image": "f"}],
        "volumes": [
            {"name": "saves", "persistentVolumeClaim": {"claimName": "saves"}},
            {"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "containers": [
            {
                "name": "worker",
                "args": ["--emulate"],
                "env": [{"name": "AWS_ENDPOINT_URL", "value": "http://s3"}],
                "envFrom": [{"secretRef": {"name": "s3"}}],
                "resources": {"limits": {"memory": "8Gi", "rdma/nic": "1"}},
                "volumeMounts": [
                    {"name": "saves", "mountPath": "/saves"},
                    {"name": "kept", "mountPath": "/kept", "readOnly": True},
                    {"name": "scratch", "mountPath": "/scratch"},
                ],
            },
            {"name": "sidecar", "image": "s"},
        ],
    },
}
ARGUMENTS = ("verify", "/saves/tiny", "--step", "3")


def a_body(template=None, defaults=DEFAULTS, arguments=ARGUMENTS):
    return checkpoint_job_body(a_job(template or TEMPLATE), defaults, "j-1", arguments)


def pod_of(body):
    return body["spec"]["template"]["spec"]


def test_it_is_tried_once_kept_for_a_while_and_goes_with_its_heddle_job():
    body = a_body()
    assert (body["apiVersion"], body["kind"]) == ("batch/v1", "Job")
    assert body["spec"]["backoffLimit"] == 0
    assert body["spec"]["ttlSecondsAfterFinished"] > 0
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == ("HeddleJob", "u-1", False)
    assert pod_of(body)["restartPolicy"] == "Never"


def test_its_container_is_the_workers_with_other_arguments_and_nothing_beside_it():
    pod = pod_of(a_body())
    (container,) = pod["containers"]
    assert container["args"] == ["checkpoint", *ARGUMENTS]
    assert (container["image"], container["command"]) == ("heddle:1", ["heddle"])
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert {"name": "AWS_ENDPOINT_URL", "value": "http://s3"} in container["env"]
    assert "initContainers" not in pod
    assert not {"ports", "livenessProbe", "readinessProbe", "startupProbe"} & set(container)


def test_it_asks_for_no_gpu_and_no_other_device():
    assert "nvidia.com/gpu" not in json.dumps(pod_of(a_body())["containers"])
    resources = pod_of(a_body())["containers"][0]["resources"]
    assert "limits" not in resources
    assert set(resources["requests"]) == {"cpu", "memory"}
    claimed = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpus"}]}}
    assert "resourceClaims" not in pod_of(
        a_body(defaults=WorkerDefaults(image="heddle:1", template=claimed))
    )


def test_it_runs_where_and_as_what_a_worker_does_but_tied_to_no_node():
    job = a_job(TEMPLATE)
    worker = pod_body(job, CreatePod("tiny-n1-0", "n1", 0, 2), DEFAULTS, 0.0)["spec"]
    pod = pod_of(a_body())
    for same in (
        *("nodeSelector", "tolerations", "imagePullSecrets", "priorityClassName"),
        *("securityContext", "runtimeClassName", "automountServiceAccountToken"),
    ):
        assert pod[same] == worker[same]
    assert pod["affinity"] == {"podAffinity": {}}
    assert pod["containers"][0]["securityContext"] == worker["containers"][0]["securityContext"]
    pinned = WorkerDefaults(image="heddle:1", template={"spec": {"nodeName": "n1"}})
    assert "nodeName" not in pod_of(a_body(defaults=pinned))


def test_it_sees_the_volumes_of_the_job_and_no_token():
    pod = pod_of(a_body())
    mounted = {row["name"] for row in pod["containers"][0]["volumeMounts"]}
    assert mounted == {"saves", "kept", "scratch", "heddle-tmp"}
    assert {row["name"] for row in pod["volumes"]} == mounted
    assert "tiny-token" not in json.dumps(pod)


def test_the_operator_takes_its_pod_for_none_of_the_job():
    labels = a_body()["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "checkpoint"
    assert (labels["team"], labels["queue"]) == ("a", "q")
    assert not [key for key in labels if key.startswith("heddle.dev/")]


@pytest.mark.parametrize("length", [4, 39, 40, 63])
def test_its_name_is_a_value_of_a_label_however_long_the_jobs_is(length):
    job = a_job()
    long = job.model_copy(
        update={"metadata": job.metadata.model_copy(update={"name": "a-" * 30 + "abc"})}
    )
    long = long.model_copy(
        update={"metadata": long.metadata.model_copy(update={"name": long.name[:length]})}
    )
    name = checkpoint_job_name(long, "export", "a1b2c3")
    assert len(name) <= 63
    assert "--" not in name


@pytest.mark.parametrize("folder", ["/saves", "/saves/out", "/saves/a/b"])
def test_an_export_goes_onto_a_volume_that_lasts(folder):
    check_target(a_job(TEMPLATE), DEFAULTS, folder)


@pytest.mark.parametrize(
    "folder", ["/kept/out", "/scratch/x", "/tmp/x", "/other", "out", "/saves2", "/saves/../etc", ""]
)
def test_an_export_goes_nowhere_else(folder):
    with pytest.raises(InvalidJob, match="/saves") as refusal:
        check_target(a_job(TEMPLATE), DEFAULTS, folder)
    assert refusal.value.code == "Refused"


HOST = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
NODE = {"spec": {"nodeName": "n1"}}  # that nobody may set


def judged(template, defaults=DEFAULTS, **condition):
    job = a_job(template)
    body = {"metadata": {"generation": 3}, "status": {"conditions": [condition]}}
    check_accepted(body, job, defaults)


def test_what_every_author_may_set_needs_no_word_of_the_operator():
    check_accepted({"metadata": {"generation": 3}}, a_job(TEMPLATE), DEFAULTS)


def test_what_an_administrator_granted_is_taken_once_the_operator_has_accepted_this_very_spec():
    accepted = {"type": "Accepted", "status": "True", "observedGeneration": 3}
    judged(HOST, **accepted)
    for change in (
        {"observedGeneration": 2},
        {"status": "False"},
        {"type": "Planned"},
    ):
        with pytest.raises(InvalidJob, match="hostPath"):
            judged(HOST, **{**accepted, **change})
    with pytest.raises(InvalidJob, match="nodeName"):
        judged(NODE, **accepted)


def test_a_name_of_the_administrator_is_never_the_authors():
    theirs = WorkerDefaults(
        image="heddle:1", template={"spec": {"volumes": [{"name": "saves", "nfs": {}}]}}
    )
    with pytest.raises(InvalidJob, match="administrator"):
        judged(TEMPLATE, theirs, type="Accepted", status="True", observedGeneration=3)
