"""What a real API server refuses to the author of a job, and to the operator that acts for him."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import pytest
import yaml

from heddle_operator.apis.heddlejob import load_job
from heddle_operator.resources.pods import WorkerDefaults, pod_body
from heddle_operator.state.actions import CreatePod
from tests.builders import heddle_job
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterFailed
from tests.cluster.installation import CHART

pytestmark = pytest.mark.slow

Json = dict[str, Any]


@pytest.fixture
def namespace(control_plane: Cluster) -> str:
    """A namespace of its own, with the service account that pods have by default."""
    name = f"team-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    path = f"/api/v1/namespaces/{name}/serviceaccounts"
    control_plane.api.wait(path, lambda seen: "default" in seen, 30, "the default account")
    return name


def apply(cluster: Cluster, namespace: str, body: Json) -> None:
    cluster.kubectl("apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(body))


@pytest.mark.parametrize(
    "name", ["../../kube-system/secrets/x", "..", "a?b", "a.b", "A", "", "a" * 64]
)
def test_a_reference_is_the_name_of_a_config_map_or_the_job_is_refused(
    control_plane: Cluster, namespace: str, name: str
) -> None:
    model = {"path": "/models/llama", "configRef": name}
    for body in (heddle_job("tiny", planRef=name), heddle_job("tiny", model=model)):
        with pytest.raises(ClusterFailed, match=r"configRef|planRef"):
            apply(control_plane, namespace, body)
    apply(control_plane, namespace, heddle_job("tiny", planRef="chosen-1"))


def a_pod(namespace: str, defaults: WorkerDefaults, **worker: Any) -> Json:
    """What the operator would create for a job of this namespace."""
    body = heddle_job("tiny", worker=worker)
    body["metadata"] |= {"namespace": namespace, "uid": "6a5b"}
    return pod_body(load_job(body), CreatePod("tiny-n1-0", "n1", 0, 2), defaults, 0.0)


def test_the_default_worker_pod_passes_the_strictest_pod_security(
    control_plane: Cluster, namespace: str
) -> None:
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", namespace, enforced)
    root = {"spec": {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}}}
    with pytest.raises(ClusterFailed, match="violates PodSecurity"):
        apply(
            control_plane,
            namespace,
            a_pod(namespace, WorkerDefaults(image="heddle:1", template=root)),
        )
    sidecar = {"spec": {"containers": [{"name": "sidecar", "image": "s:1"}]}}
    for template in ({}, sidecar):
        pod = a_pod(namespace, WorkerDefaults(image="heddle:1", template={}), template=template)
        apply(control_plane, namespace, pod)
        # it may be gone: its job is none, so the garbage collector deletes it
        name = pod["metadata"]["name"]
        control_plane.kubectl("delete", "pod", "-n", namespace, name, "--ignore-not-found")


def test_the_pods_of_the_chart_pass_the_strictest_pod_security(
    control_plane: Cluster, namespace: str
) -> None:
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", namespace, enforced)
    rendered = control_plane.helm("template", "trial", str(CHART), "--namespace", namespace)
    bodies = [body for body in yaml.safe_load_all(rendered) if body]
    specs = [body["spec"]["template"]["spec"] for body in bodies if body["kind"] == "Deployment"]
    specs += [body["spec"] for body in bodies if body["kind"] == "Pod"]
    assert len(specs) == 2
    for spec in specs:
        spec.pop("serviceAccountName", None)  # which is not there
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial"}, "spec": spec}
        where = ("--namespace", namespace, "--dry-run=server", "--filename=-")
        control_plane.kubectl("create", *where, stdin=json.dumps(pod))


ROLE = ("--verb=get,list,watch,create,update,patch,delete", "--resource=heddlejobs.heddle.dev")


def test_who_may_not_create_pods_cannot_let_a_job_create_them(
    control_plane: Cluster, namespace: str
) -> None:
    kubectl = control_plane.kubectl
    where = ("--namespace", namespace)
    for user, role in (("mallory", "jobs"), ("alice", "jobs"), ("alice", "edit")):
        kind = "clusterrole" if role == "edit" else "role"
        if user == "mallory":
            kubectl("create", "role", role, *where, *ROLE)
        name = f"{user}-{role}"
        kubectl("create", "rolebinding", name, *where, f"--{kind}={role}", f"--user={user}")
    rendered = control_plane.helm(
        "template", namespace, str(CHART), "--show-only=templates/policy.yaml"
    )
    kubectl("apply", "--filename=-", stdin=rendered)
    try:
        told = why_refused(control_plane, namespace, heddle_job("tiny"), "mallory")
        assert "its author may not create in this namespace" in told
        given = json.dumps(heddle_job("tiny"))
        kubectl("apply", *where, "--as=alice", "--filename=-", stdin=given)
        patch = ("patch", "heddlejob", "tiny", *where, "--type=merge", "--as=mallory")
        with pytest.raises(ClusterFailed, match="may not create in this namespace"):
            kubectl(*patch, '--patch={"spec": {"planRef": "a"}}')
        kubectl(*patch, '--patch={"metadata": {"labels": {"a": "b"}}}')
    finally:
        kubectl("delete", "--filename=-", stdin=rendered)


def why_refused(cluster: Cluster, namespace: str, body: Json, user: str) -> str:
    """Why a user may not create a job, once the API server has taken the policy over."""
    command = ("create", "--namespace", namespace, f"--as={user}", "--dry-run=server")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            cluster.kubectl(*command, "--filename=-", stdin=json.dumps(body))
        except ClusterFailed as error:
            return str(error)
    raise AssertionError("the policy refuses nobody")
