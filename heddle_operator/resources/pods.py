"""The worker pods of a job: place, GPUs, identity, and what templates add to them.

Invariant: equal input gives equal bodies, and what a template may not change (place, GPUs,
identity) is written last.
Source: design, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import (
    AGENT_PORT,
    CREATED_ANNOTATION,
    NODE_ANNOTATION,
    ORDINAL_ANNOTATION,
    WORKER,
)
from heddle_operator.inventory.filters import GPU_TAINT
from heddle_operator.inventory.requests import GPU
from heddle_operator.resources.metadata import Body, metadata
from heddle_operator.resources.pod_template import merge
from heddle_operator.resources.secret import token_name
from heddle_operator.state.actions import CreatePod
from worker.log_lines import Format

GRACE_S = 60  # from the notice to the end of a pod; the agent trains on until 5 s before
TOLERATION_S = 10  # a node may be not ready for so long before its pods get their notice
TOKEN_FOLDER, DATA_FOLDER = "/var/run/heddle", "/var/lib/heddle/data"
TEXT_BYTES = 2_000_000  # of the built-in text


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """What an administrator gives all worker pods.

    Attributes:
        image: of the workers.
        template: a pod template that is merged below the job's own.
        log_format: of workers whose job does not say.
    """

    image: str
    template: Mapping[str, Any]
    log_format: Format = "text"


def pod_spec_of(job: HeddleJob, defaults: WorkerDefaults) -> Body:
    """Spec of the job's pods as far as it is the same for all of them."""
    base: Body = {
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [
            {"key": GPU_TAINT, "operator": "Exists"},
            *(
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": TOLERATION_S}
                for key in ("not-ready", "unreachable")
            ),
        ],
        "containers": [_worker_container(defaults.image)],
        "volumes": [
            {"name": "heddle-token", "secret": {"secretName": token_name(job)}},
            {"name": "heddle-shm", "emptyDir": {"medium": "Memory"}},
            {"name": "heddle-tmp", "emptyDir": {}},
            {"name": "heddle-data", "emptyDir": {}},
        ],
    }  # fmt: skip
    for template in (defaults.template, job.spec.worker.template):
        base = merge(base, template.get("spec") or {})
    return base


def pod_body(
    job: HeddleJob, action: CreatePod, defaults: WorkerDefaults, now_wall_s: float
) -> Body:
    """One worker pod: tied to its node, with exactly the GPUs that were granted."""
    spec = pod_spec_of(job, defaults)
    spec.pop("nodeName", None)
    spec |= {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _tied_to(action.node, spec.get("affinity") or {}),
    }
    containers = {container["name"]: container for container in spec["containers"]}
    worker = containers.pop(WORKER)
    arguments = [
        *("worker", "agent", "--job", job.name, "--pod", action.name, "--node", action.node),
        *("--gpus", str(action.gpus), "--host", "$(POD_IP)", "--port", str(AGENT_PORT)),
        *("--token-file", f"{TOKEN_FOLDER}/token"),
        *("--grace-s", str(spec["terminationGracePeriodSeconds"])),
        *("--peer-timeout-s", f"{job.spec.elastic.peer_timeout_seconds:g}"),
        *("--log-format", job.spec.worker.log_format or defaults.log_format),
    ]
    gpus = {GPU: str(action.gpus)}
    resources = merge(worker.get("resources") or {}, {"limits": gpus, "requests": gpus})
    agent = {
        **worker,
        "args": [*arguments, *worker.get("args", [])],
        "resources": resources,
    }
    spec["containers"] = [agent, *containers.values()]
    if job.spec.data.builtin is not None:
        spec["initContainers"] = [*spec.get("initContainers", []), _data_container(job, worker)]
    noted = {
        NODE_ANNOTATION: action.node,
        ORDINAL_ANNOTATION: str(action.ordinal),
        CREATED_ANNOTATION: f"{now_wall_s:.3f}",
    }
    body = metadata(job, action.name, **{"app.kubernetes.io/component": "worker"})
    for template in (job.spec.worker.template, defaults.template):
        given = template.get("metadata") or {}
        body["labels"] = {**(given.get("labels") or {}), **body["labels"]}
        noted = {**(given.get("annotations") or {}), **noted}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**body, "annotations": noted},
        "spec": spec,
    }


def with_data_folder(job: HeddleJob) -> HeddleJob:
    """The job as its pods see it: the built-in text is a file that an init container makes."""
    if job.spec.data.builtin is None:
        return job
    return job.with_data(f"{DATA_FOLDER}/{job.spec.data.builtin}")


def _worker_container(image: str) -> Body:
    return {
        "name": WORKER,
        "image": image,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "USER", "value": "heddle"},  # torch asks for a name, and the uid may have none
            {"name": "HOME", "value": "/tmp"},
            {"name": "TMPDIR", "value": "/tmp"},
        ],
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "heddle-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
            {"name": "heddle-shm", "mountPath": "/dev/shm"},
            {"name": "heddle-tmp", "mountPath": "/tmp"},
            {"name": "heddle-data", "mountPath": DATA_FOLDER},
        ],
    }


def _data_container(job: HeddleJob, worker: Mapping[str, Any]) -> Body:
    """Makes the built-in text where the worker looks for it; the same text in every pod."""
    kept = {
        key: value for key, value in worker.items() if key not in ("ports", "args", "resources")
    }
    name = str(job.spec.data.builtin)
    arguments = ["data", "prepare", "--builtin", name, "--output", f"{DATA_FOLDER}/{name}"]
    resources = {
        kind: {key: value for key, value in given.items() if key != GPU}
        for kind, given in (worker.get("resources") or {}).items()
    }
    return {
        **kept,
        "name": "data",
        "args": [*arguments, "--max-bytes", str(TEXT_BYTES)],
        "resources": resources,
    }


def _tied_to(node: str, affinity: Mapping[str, Any]) -> Body:
    """The template's affinity, and this very node in each of its alternatives."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes = affinity.get("nodeAffinity") or {}
    terms: Sequence[Mapping[str, Any]] = (nodes.get(required) or {}).get("nodeSelectorTerms") or [
        {}
    ]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    tied = [{**term, "matchFields": [*(term.get("matchFields") or []), field]} for term in terms]
    return {**affinity, "nodeAffinity": {**nodes, required: {"nodeSelectorTerms": tied}}}
