"""A user who has rights on HeddleJobs only, at a real cluster with the operator of the chart.

She tries by jobs what she may not do herself: read what others keep, take or delete what is theirs,
run pods that are more than worker pods.  First with the chart as it is, then without its policy, as
on a cluster that is older than policies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.api import pods
from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.errors import ClusterFailed
from tests.cluster.host_mounts import host_mounts
from tests.cluster.installation import OPERATOR_NODE, Installation
from tests.e2e.kubernetes.job import Job, Json, job_body

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]

USER = "mallory"
RIGHTS = ("--verb=get,list,watch,create,update,patch,delete", "--resource=heddlejobs.heddle.dev")
SECRET_WORD = "hunter2"
POLICY = ("validatingadmissionpolicybinding", "heddle-authors")


@pytest.fixture
def chart(assets: Assets) -> Iterator[Installation]:
    """Heddle as its chart installs it, and things of others beside it."""
    nodes = (OPERATOR_NODE, NodeSpec("n1", 2, "demo-slow"))
    with Cluster.start(nodes, assets=assets) as cluster:
        installation = Installation(cluster)
        installation.install()
        for body in things_of_others():
            cluster.kubectl("create", "--filename=-", stdin=json.dumps(body))
        cluster.kubectl("wait", "--for=condition=Ready", "pod/postgres-0", "--timeout=60s")
        cluster.kubectl("create", "role", USER, *RIGHTS)
        cluster.kubectl("create", "rolebinding", USER, f"--role={USER}", f"--user={USER}")
        yield installation
        print(installation.operator_log())


def things_of_others() -> list[Json]:
    """What she may neither read nor touch; some has a name that Heddle needs for a job."""
    word = {"word": SECRET_WORD}
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "postgres"}}}
    return [
        thing("Secret", "admin-cred", namespace="kube-system", stringData=word),
        thing("Secret", "vault-token", stringData=word),
        thing("ConfigMap", "private", data={SECRET_WORD: "1", "plan": f"{{{SECRET_WORD}"}),
        thing("ConfigMap", "epochs-epoch-1", data=word),
        thing("PodDisruptionBudget", "postgres", "policy/v1", spec=budget),
        thing(
            "Pod",
            "postgres-0",
            spec=host_mounts().pod_spec(host_mounts().container("main", "-m", "http.server")),
        ),
    ]


def thing(
    kind: str, name: str, api: str = "v1", namespace: str = "default", **content: Any
) -> Json:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "postgres"}},
        **content,
    }


def held_by_others(cluster: Cluster) -> list[Json]:
    """The things of others as they are now, without what controllers write on them."""
    found = []
    for body in things_of_others():
        kind, at = body["kind"].lower(), body["metadata"]
        where = ("--namespace", at["namespace"], "--output=json")
        seen = json.loads(cluster.kubectl("get", kind, at["name"], *where))
        kept = {key: seen.get(key) for key in ("data", "spec")}
        metadata = seen["metadata"]
        found.append({**kept, **{key: metadata.get(key) for key in ("uid", "ownerReferences")}})
    return found


def create(
    cluster: Cluster,
    name: str,
    template: Json | None = None,
    options: tuple[str, ...] = (),
    mode: str = "Auto",
    **spec: Any,
) -> Job:
    """A job that she creates, of two GPUs, with this spec of its pod template.

    Raises:
        ClusterFailed: she may not.
    """
    body = job_body(name, maxGPUs=2, minHolders=1, mode=mode)
    body["spec"] |= {"worker": {"template": {"spec": template or {}}}, **spec}
    command = ("create", f"--as={USER}", *options, "--filename=-")
    cluster.kubectl(*command, stdin=json.dumps(body))
    return Job(cluster, name)


def test_who_has_rights_on_jobs_only_gains_nothing_by_them(chart: Installation) -> None:
    cluster = chart.cluster
    before = held_by_others(cluster)
    for verb, resource in (("create", "pods"), ("get", "secrets"), ("delete", "secrets")):
        command = ("auth", "can-i", verb, resource, f"--as={USER}")
        assert cluster.kubectl(*command, check=False).strip() != "yes"
    with pytest.raises(ClusterFailed, match="its author may not create in this namespace"):
        create(cluster, "plain")

    cluster.kubectl("delete", *POLICY)
    wait_until_it_is_off(cluster)
    she_reads_nothing(cluster)
    her_pods_are_worker_pods(cluster)
    she_takes_and_deletes_nothing(cluster)

    assert held_by_others(cluster) == before
    seen = cluster.kubectl("get", "heddlejobs,events", "--all-namespaces", "--output=json")
    assert SECRET_WORD not in seen
    assert SECRET_WORD not in chart.operator_log()
    for pod in cluster.api.get(pods())["items"]:
        owners = [row["name"] for row in pod["metadata"].get("ownerReferences", ())]
        name = pod["metadata"]["name"]
        assert owners == ["postgres"] or name == "postgres-0" or name.startswith("heddle-")
        assert not pod["spec"].get("hostNetwork")
        assert not pod["spec"].get("hostPID")


def wait_until_it_is_off(cluster: Cluster) -> None:
    """The API server hears of the deletion by a watch, and shows by nothing else that it has."""
    deadline = time.monotonic() + 30
    while True:
        try:
            create(cluster, "plain", options=("--dry-run=server",))
        except ClusterFailed:
            if time.monotonic() > deadline:
                raise
        else:
            return


def she_reads_nothing(cluster: Cluster) -> None:
    elsewhere = "../../../kube-system/secrets/admin-cred"
    with pytest.raises(ClusterFailed, match="name of a ConfigMap"):
        create(cluster, "reader", planRef=elsewhere)
    model = {"path": "/models/x", "configRef": elsewhere}
    with pytest.raises(ClusterFailed, match="name of a ConfigMap"):
        create(cluster, "reader", model=model)
    config = create(cluster, "config", model={"path": "/models/x", "configRef": "private"})
    config.wait(says("must hold the key config.json"), "a word on the ConfigMap")
    config.delete()
    plan = create(cluster, "plan", mode="Manual", planRef="private")
    plan.wait_for_event("PlanRefused", "it must hold the key plan.json")
    plan.delete()


TEMPLATES: dict[str, Json] = {
    "hostPath": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "privileged": {"containers": [{"name": "worker", "securityContext": {"privileged": True}}]},
    "capabilities": {
        "containers": [
            {"name": "worker", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
        ]
    },
    "serviceAccountName": {"serviceAccountName": "default"},
    "automountServiceAccountToken": {"automountServiceAccountToken": True},
}


def her_pods_are_worker_pods(cluster: Cluster) -> None:
    """One job for each field that would open more; all are refused before there is a pod."""
    jobs = {name: create(cluster, name.lower(), spec) for name, spec in TEMPLATES.items()}
    for name, job in jobs.items():
        said = job.wait(says(f"a job may not set {name}"), name)
        assert said["status"]["phase"] == "Invalid"
        assert job.pods() == {}
    for job in jobs.values():
        job.delete()


def says(words: str) -> Callable[[Json], bool]:
    """Whether a status has these words in its message."""
    return lambda status: words in status.get("message", "")


def she_takes_and_deletes_nothing(cluster: Cluster) -> None:
    vault = create(cluster, "vault")
    vault.wait(is_taken("Accepted", "Secret vault-token"), "a word on the Secret")
    epochs = create(cluster, "epochs")
    epochs.wait(is_taken("Degraded", "ConfigMap epochs-epoch-1"), "a word on the ConfigMap")
    postgres = create(cluster, "postgres")
    postgres.wait(is_taken("Degraded", "PodDisruptionBudget postgres"), "a word on the budget")
    assert vault.pods() == epochs.pods() == {}
    vault.delete()
    epochs.delete()


def is_taken(kind: str, words: str) -> Callable[[Json], bool]:
    """Whether a condition says that a name is taken."""

    def claim(status: Json) -> bool:
        rows = [row for row in status.get("conditions", ()) if row["type"] == kind]
        return any(row["reason"] == "NameTaken" and words in row["message"] for row in rows)

    return claim
