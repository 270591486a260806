"""`heddle checkpoint --job` at a real API server: it takes the Job, if the caller may create it."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle_operator.resources.pinned_workers import workers_to_json
from heddle_operator.resources.pods import WorkerDefaults
from tests.builders import heddle_job
from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.slow

Json = dict[str, Any]
NAME, LIMIT_S = "tiny", 60.0
TEMPLATE = {
    "spec": {
        "volumes": [{"name": "saves", "emptyDir": {}}],
        "containers": [
            {
                "name": "worker",
                "envFrom": [{"secretRef": {"name": "s3", "optional": True}}],
                "volumeMounts": [{"name": "saves", "mountPath": "/saves"}],
            }
        ],
    }
}


@pytest.fixture
def namespace(control_plane: Cluster) -> str:
    """A namespace that takes restricted pods only, with a job and the record of its operator."""
    name = f"team-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", name, enforced)
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    control_plane.api.wait(accounts, lambda seen: "default" in seen, 30, "the default account")
    body = heddle_job(NAME, checkpoint={"path": "/saves"}, worker={"template": TEMPLATE})
    apply(control_plane, name, body)
    made = control_plane.api.get(f"{jobs(name)}/{NAME}")
    owner = {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": NAME,
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    labels = {"heddle.dev/job": NAME, "heddle.dev/epoch": "1"}
    metadata = {"ownerReferences": [owner], "labels": labels}
    defaults = WorkerDefaults(image="heddle:1", template={})
    apply(
        control_plane,
        name,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{NAME}-epoch-1", **metadata},
            "data": {"workers": workers_to_json(defaults, "secret")},
        },
    )
    token = base64.b64encode(b"secret").decode()
    apply(
        control_plane,
        name,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{NAME}-token", **metadata},
            "data": {"token": token},
        },
    )
    return name


def jobs(namespace: str) -> str:
    return f"/apis/heddle.dev/v1alpha1/namespaces/{namespace}/heddlejobs"


def apply(cluster: Cluster, namespace: str, body: Json) -> None:
    cluster.kubectl("apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(body))


@contextmanager
def verify(kubeconfig: Path, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """`heddle checkpoint verify --job` as a process."""
    command = (sys.executable, "-m", "heddle", "checkpoint", "verify")
    process = subprocess.Popen(
        [*command, "--job", f"{namespace}/{NAME}"],
        stderr=subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_job_is_taken_its_pod_is_restricted_and_ctrl_c_takes_both_away(
    control_plane: Cluster, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    batch = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    with verify(control_plane.kubeconfig, namespace) as process:
        assert process.stderr is not None
        assert f"works on /saves/{NAME}" in process.stderr.readline()
        assert "no nodes available" in process.stderr.readline()  # here no pod ever runs
        ((name, job),) = control_plane.api.wait(batch, bool, LIMIT_S, "a Job").items()
        (pod,) = control_plane.api.wait(pods, bool, LIMIT_S, "its pod").values()
        (container,) = pod["spec"]["containers"]
        assert container["args"][:3] == ["checkpoint", "verify", f"/saves/{NAME}"]
        assert container["envFrom"] == [{"secretRef": {"name": "s3", "optional": True}}]
        assert [row["kind"] for row in job["metadata"]["ownerReferences"]] == ["HeddleJob"]
        process.send_signal(signal.SIGINT)
        assert f"{name} is deleted" in process.stderr.read()
        assert process.wait(LIMIT_S) == 130
    for path in (batch, pods):
        control_plane.api.wait(path, lambda seen: not seen, LIMIT_S, f"nothing in {path}")


def test_the_job_goes_with_its_heddle_job(control_plane: Cluster, namespace: str) -> None:
    batch = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    with verify(control_plane.kubeconfig, namespace) as process:
        assert process.stderr is not None
        assert "works on" in process.stderr.readline()
        process.kill()  # nobody deletes the Job
        process.wait()
    control_plane.kubectl("delete", "heddlejob", NAME, "--namespace", namespace)
    control_plane.api.wait(batch, lambda seen: not seen, LIMIT_S, "the Job to be collected")


def test_who_may_read_all_and_create_no_job_is_told_so(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    kubectl, where = control_plane.kubectl, ("--namespace", namespace)
    kubectl("create", "serviceaccount", "reader", *where)
    kinds = "--resource=heddlejobs.heddle.dev,secrets,configmaps,pods"
    kubectl("create", "role", "reader", *where, "--verb=get,list", kinds)
    account = f"--serviceaccount={namespace}:reader"
    kubectl("create", "rolebinding", "reader", *where, "--role=reader", account)
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    token = kubectl("create", "token", "reader", *where).strip()
    config["users"] = [{"name": row["name"], "user": {"token": token}} for row in config["users"]]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    with verify(kubeconfig, namespace) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(LIMIT_S) == 2
    assert 'cannot create resource "jobs"' in said
    assert "ask for the role edit" in said
    assert said.count("\n") == 1
